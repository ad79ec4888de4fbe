"""Reads what Megatron-LM and its descendants print."""

from __future__ import annotations

import math
from pathlib import Path

from stabilitylens.readers._names import loss_rank
from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import Mark
from stabilitylens.readers._table import Alike
from stabilitylens.readers._text_reader import SIGNED, Rows, read_text, signed
from stabilitylens.run import Run

LOSS, SKIPPED = "lm loss", "number of skipped iterations"


@reader(name="megatron", sniff=signed(r"iteration\s+\d+/\s*\d+ \|.*(?:consumed samples|elapsed time per iteration)"), most=SIGNED)
def read(path: Path) -> list[Run]:
    """Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge, GPT-NeoX: ``iteration 62/ 1000 | … | lm loss: 2.04E+01 | …``.

    These tools leave a loss that is NaN or infinite out of the line, and may print ``number of nan iterations: 0`` all the
    same. A line without a loss therefore is a NaN, except where all its iterations were skipped: then there was none.
    A ``grad norm`` of 0.000 throughout means that it was not available. ``validation loss at iteration 100`` is evaluation.
    """
    return read_text(path, "megatron", _with_omitted)


def _with_omitted(rows: Rows) -> Rows:
    key, last = LOSS, 0.0
    for some in rows:
        if isinstance(some, Alike) and (losses := [name for name in some if loss_rank(name)]):
            key, last = max(losses, key=loss_rank), some.get("iteration", [last])[-1]
            yield some
            continue
        for row in some.rows() if isinstance(some, Alike) else [some]:
            if isinstance(row, Mark) or "iteration" not in row or "consumed samples" not in row:
                yield row
                continue
            losses = [name for name in row if loss_rank(name)]
            if losses:
                key = max(losses, key=loss_rank)
            elif "loss scale" in row and row.get(SKIPPED, 0) < max(row["iteration"] - last, 1):
                row[key] = math.nan
            last = row["iteration"]
            yield row
