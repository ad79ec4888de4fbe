"""Which suspects a person reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: suspects shown in full, and how likely all but the first must be. *Heuristic*.
SHOWN, LIKELY = 3, 0.1


def leading(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first, and what else is likely; ``entries`` are those of one run, most likely first."""
    return [entry for i, entry in enumerate(entries) if i == 0 or (i < SHOWN and entry["score"] >= LIKELY)]


def excluded(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Names of those that something speaks against."""
    return [entry["name"] for entry in entries if entry["excluded"]]
