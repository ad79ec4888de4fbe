"""Reads a JSON document that holds a history in some shape."""

from __future__ import annotations

import json
from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.readers._json import begins_json, document
from stabilitylens.readers._names import loss_rank
from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.readers._source import HEAD
from stabilitylens.readers._tree import FEW, history
from stabilitylens.run import Run


def sniff(path: Path) -> float:
    """Sure where the whole file is one document with a history in it, or where a large one's first line is not."""
    begin = begins_json(path)
    if not begin:
        return 0.0
    if len(begin) < HEAD - 64:
        try:
            return 0.72 if history(json.loads(begin)).length else 0.0
        except RecursionError:
            return 0.5
        except ValueError:
            pass
    try:
        whole_line = isinstance(json.loads(begin.splitlines()[0]), dict)
    except (ValueError, RecursionError):
        whole_line = False
    return 0.0 if whole_line or not (b":" in begin and b'"' in begin) else 0.65


@reader(name="json_document", sniff=sniff, most=0.72)
def read(path: Path) -> list[Run]:
    """A JSON document with a history: a list of records, columns, or maps from steps to values.

    Understands ``[{"step": 1, "loss": 2.3}, …]``, ``{"loss": [2.3, …], "step": [1, …]}``, ``{"loss": {"1": 2.3, …}}``,
    ``{"1": {"loss": 2.3}, …}``, points as ``[step, value]`` and ``[time, step, value]`` (TensorBoard's export), and these
    below other keys; of several histories the one with a loss, then the longest, is read. Of a document that is cut, the
    records that are whole.
    """
    notes: list[str] = []
    found = history(document(path, notes))
    if found.length < FEW:
        raise BadInput(f"{path} is a JSON document without a history in it (a configuration?); give the log of a training run")
    only = "value" if "value" in found.keys and not any(map(loss_rank, found.keys)) else None
    return runs_from_rows(path, "json_document", found.rows, notes, loss_key=only)
