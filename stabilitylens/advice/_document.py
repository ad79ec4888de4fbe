"""What advice and proposals have in common: text, JSON and a page."""

from __future__ import annotations

from io import StringIO
from typing import Any, ClassVar, Literal, TextIO

Form = Literal["text", "json", "html"]


class Document:
    """Something that is written in three forms.

    Attributes:
        template: name of its page's template.
    """

    template: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the version of the schema."""
        raise NotImplementedError

    def to_json(self) -> str:
        """JSON as docs/json.md describes it."""
        return self._render("json")

    def to_html(self) -> str:
        """One self-contained page without scripts."""
        return self._render("html")

    def __str__(self) -> str:
        return self._render("text")

    def write(self, stream: TextIO, form: Form) -> None:
        """Write all of it in one form."""
        from stabilitylens.advice._writers import WRITERS

        WRITERS[form](self, stream)

    def _render(self, form: Form) -> str:
        out = StringIO()
        self.write(out, form)
        return out.getvalue()
