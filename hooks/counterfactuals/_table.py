"""What the counterfactuals of an incident came to, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from stabilitylens.beside import TABLE
from stabilitylens.cures import cure

Verdict = Literal["averts", "does not avert", "not applicable", "failed"]


@dataclass(frozen=True)
class Row:
    """One counterfactual.

    Attributes:
        name: its. suspect: the cause that it tests; None for none. weight: of its verdict, in nats of log odds.
        verdict: whether it averts the incident. why: it does not, was not applicable, or failed.
        losses, norms: of each step that was run, the norm of all gradients before the loop clipped them.
        left_out: steps that were not run.
        loss_after: the mean loss of the steps after the incident, NaN where none was run.
    """

    name: str
    suspect: str | None
    weight: float
    verdict: Verdict
    why: str = ""
    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    loss_after: float = math.nan

    def at(self, step: int) -> str:
        """The loss of a step in words."""
        return "left out" if step in self.left_out else f"{self.losses[step]:.4g}" if step in self.losses else ""


@dataclass(frozen=True)
class Table:
    """The baseline, which changes nothing, and each counterfactual, all from the same snapshot on the same batches.

    Attributes:
        folder: of the incident. step, kinds: its. snapshot_step: the first step that was run.
        after: so many steps were run after the incident. on: which batches those had.
        limit: a loss above it is an incident; infinite where only one that is not finite is. level: what the mean loss of the steps
            after may be at most. limit_from: in words.
        norm_limit: the same of the gradient norm; None where the gradient is not what went wrong.
        loss_before: median of the recorded losses before the incident.
        shown: the baseline shows the incident again; without that nothing else is run.
        baseline: without any change.
        rows: the counterfactuals.
        notes: what else there is to know, a sentence each.
    """

    folder: str
    step: int
    kinds: tuple[str, ...]
    snapshot_step: int
    after: int
    on: str
    limit: float
    level: float
    limit_from: str
    norm_limit: float | None
    loss_before: float
    shown: bool
    baseline: Row
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def averting(self) -> list[str]:
        """Names of those that avert it, the lowest loss after first."""
        return [row.name for row in sorted(self.rows, key=lambda r: (r.loss_after != r.loss_after, r.loss_after)) if row.verdict == "averts"]

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        """As dictionaries, lists and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{' and '.join(self.kinds)} at step {self.step}: steps {self.snapshot_step} to {self.step} and {self.after} more"
            + (f" on {self.on}" if self.after else ""),
            f"a loss above {self.limit:.4g} is the incident: {self.limit_from}; so is a mean above {self.level:.4g} after it"
            if math.isfinite(self.limit) else self.limit_from,
        ]
        if self.norm_limit is not None:
            lines.append(f"so is a gradient norm above {self.norm_limit:.4g}")
        rows = [("", "averts it", f"loss at {self.step}", "loss after"), _cells(self.baseline, self.step), *(_cells(r, self.step) for r in self.rows)]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() + (f"  {row[4]}" if len(row) > 4 else "") for row in rows]
        return "\n".join([*lines, *self.notes, cure(self.to_dict())])

    def save(self) -> Path:
        """Write it beside the incident's folder, whole or not at all, where a post-mortem of the run looks for it.

        Raises:
            OSError: it can't be written.
        """
        return TABLE.write(Path(self.folder), self.to_dict())


def _cells(row: Row, step: int) -> Sequence[str]:
    averts = {"averts": "yes", "does not avert": "no"}.get(row.verdict, row.verdict)
    after = "" if math.isnan(row.loss_after) else f"{row.loss_after:.4g}"
    return (row.name, "" if row.name == "baseline" else averts, row.at(step), after, *([row.why] if row.why else []))
