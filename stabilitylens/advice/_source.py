"""Where advice comes from, and how far that was read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Read = Literal["measured", "code", "summary"]


@dataclass(frozen=True)
class Source:
    """One source.

    Attributes:
        read: ``measured`` by us, the authors' ``code``, or a ``summary``: the abstract or an account of the paper.
        url: None for what we measured.
        scale: parameters of the largest model in it, where that is known.
    """

    title: str
    read: Read
    url: str | None = None
    scale: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)
