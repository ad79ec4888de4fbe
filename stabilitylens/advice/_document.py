"""What advice and proposals have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, TextIO

from stabilitylens.document import Document


class Advisory(Document):
    """Advice or a proposal.

    Attributes:
        template: name of its page's template.
    """

    template: ClassVar[str]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the version of the schema."""

    def write(self, stream: TextIO, form: str) -> None:
        """Write all of it as ``text``, ``json`` or ``html``."""
        from stabilitylens.advice._writers import WRITERS

        WRITERS[form](self, stream)
