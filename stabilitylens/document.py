"""What reports, comparisons and advice have in common: text, JSON and a page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import StringIO
from typing import TextIO


class Document(ABC):
    """Something that is written in several forms; ``str(document)`` is its text without colour."""

    @abstractmethod
    def write(self, stream: TextIO, form: str) -> None:
        """Write all of it as ``text``, ``json``, ``html``, or what else it has."""

    def to_json(self) -> str:
        """JSON as docs/json.md describes it; what is not a finite number is null."""
        return self._render("json")

    def to_html(self) -> str:
        """One self-contained page: nothing is loaded from elsewhere."""
        return self._render("html")

    def __str__(self) -> str:
        return self._render("text")

    def _render(self, form: str) -> str:
        out = StringIO()
        self.write(out, form)
        return out.getvalue()
