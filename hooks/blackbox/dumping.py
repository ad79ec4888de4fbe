"""What of the ring and the snapshots goes into an incident's folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stabilitylens.hooks.blackbox import folder
from stabilitylens.hooks.blackbox.manifest import Manifest
from stabilitylens.hooks.blackbox.ring import StepRecord
from stabilitylens.hooks.blackbox.rolling import Stored

#: steps that a replay runs before the incident where there is a choice of snapshots: what leads to it is seen too. *Heuristic*.
LEAD = 4
#: bytes of a step's random states and numbers in a file, rounded up
_STATES = 1 << 16


def chosen(snapshots: Sequence[Stored], step: int, kept: Sequence[StepRecord]) -> Stored | None:
    """The newest snapshot that leaves some steps before the incident, else the newest before it; None for none.

    Every step from it on must have been kept.
    """
    first = kept[0].step if kept else step + 1
    usable = [s for s in snapshots if first <= s.step <= step]
    early = [s for s in usable if s.step <= step - LEAD]
    return early[-1] if early else usable[-1] if usable else None


def files_of(rank: int, kept: Sequence[StepRecord], snapshot: Stored | None, left_out: dict[str, str]) -> dict[str, folder.Write]:
    """The files of one process, by name."""
    steps = {record.step: record.settled(left_out) for record in kept}
    files: dict[str, folder.Write] = {f"rank_{rank}/steps.pt": lambda path: torch.save(steps, path)}
    if snapshot is not None:
        left_out |= snapshot.left_out
        files[f"rank_{rank}/snapshot.pt"] = snapshot.write
    return files


def dump(
    incidents: Path, step: int, kinds: Sequence[str], reason: str, kept: Sequence[StepRecord], snapshots: Sequence[Stored],
    setting: dict[str, Any], budget: int,
) -> tuple[Path, list[str]]:  # fmt: skip
    """Write an incident.

    Returns:
        Its folder, and the names of older incidents that had to make room for it.
    """
    left_out: dict[str, str] = {}
    snapshot = chosen(snapshots, step, kept)
    wanted = sum(record.size + _STATES for record in kept)
    if snapshot is not None and wanted + snapshot.size > budget:
        left_out["snapshot"] = f"its {snapshot.size / 1e6:.0f} MB are more than the {budget / 1e6:.0f} MB of budget_bytes"
        snapshot = None
    elif snapshot is None and snapshots:
        left_out["snapshot"] = "the micro-batches since then were not all kept: a larger keep= or max_bytes= keeps more"
    gone = folder.make_room(incidents, budget, wanted + (snapshot.size if snapshot else 0))
    partial = folder.begin(incidents, step)
    folder.fill(partial, files_of(0, kept, snapshot, left_out))
    steps = tuple({"step": r.step, "micro_batches": len(r.micro), "scalars": r.scalars} for r in kept)
    at = None if snapshot is None else snapshot.step
    manifest = Manifest(step, tuple(sorted(kinds)), reason, time.time(), 1, at, steps, left_out, setting)
    return folder.finish(partial, manifest), gone
