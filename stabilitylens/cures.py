"""What counterfactuals came to, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def in_words(row: Mapping[str, Any]) -> str:
    """A counterfactual's verdict: ``skip_batch averts it (loss after 2.31)``."""
    if row["verdict"] not in ("averts", "does not avert"):
        return f"{row['name']}: {row['verdict']}"
    after = f" (loss after {row['loss_after']:.3g})" if row["verdict"] == "averts" and known(row["loss_after"]) else ""
    return f"{row['name']} {row['verdict']} it{after}"


def cure(table: Mapping[str, Any]) -> str:
    """What averts the incident at the lowest loss, in a sentence."""
    if not table["shown"]:
        return "the run without any change does not show the incident again, so nothing was tried"
    averting: Sequence[Mapping[str, Any]] = [row for row in table["rows"] if row["verdict"] == "averts"]
    if not averting:
        return "nothing that was tried averts it"
    best = min(averting, key=lambda row: row["loss_after"] if known(row["loss_after"]) else float("inf"))
    tried = sum(row["verdict"] in ("averts", "does not avert") for row in table["rows"])
    return f"{len(averting)} of {tried} that were tried avert it; of these at the lowest loss after: {in_words(best)}"


def known(value: Any) -> bool:
    """Whether it is a number that was observed."""
    return isinstance(value, (int, float)) and value == value
