"""The forms that a comparison is written in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from stabilitylens.comparison._page import write_page
from stabilitylens.comparison._text import write_text
from stabilitylens.reports.json import SCHEMA, plain

if TYPE_CHECKING:
    from stabilitylens.comparison._comparison import Comparison


def document(found: Comparison) -> dict[str, Any]:
    """The comparison as JSON-ready plain data."""
    runs = [
        {
            "path": run.path, "format": run.format, "failed": failed,
            "incidents": [incident.to_dict() for incident in incidents],
        }
        for run, failed, incidents in zip(found.runs, found.failed, found.incidents, strict=True)
    ]  # fmt: skip
    pairs = [
        {
            "a": pair.a, "b": pair.b, "first": pair.first.to_dict() if pair.first else None,
            "partings": [parting.to_dict() for parting in pair.partings],
            "ratios": [table.to_dict() for table in pair.ratios],
        }
        for pair in found.pairs
    ]  # fmt: skip
    return {
        "schema": SCHEMA,
        "headline": found.headline,
        "runs": runs,
        "differences": [difference.to_dict() for difference in found.differences],
        "pairs": pairs,
        "shared": [row.to_dict() for row in found.shared],
        "neighbours": [{"run": i, "nearest": j} for i, j in found.neighbours.items()],
    }


def write_json(found: Comparison, stream: TextIO) -> None:
    """Indented, keys in the order of the contract, with a final newline."""
    json.dump(plain(document(found)), stream, indent=2, allow_nan=False)
    stream.write("\n")


WRITERS: dict[str, Callable[[Comparison, TextIO], None]] = {"text": write_text, "json": write_json, "html": write_page}
