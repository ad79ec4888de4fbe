"""Writes an incident, by one process or by several together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stabilitylens.hooks.blackbox import folder
from stabilitylens.hooks.blackbox.crowd import Alone
from stabilitylens.hooks.blackbox.manifest import Manifest
from stabilitylens.hooks.blackbox.ring import StepRecord
from stabilitylens.hooks.blackbox.rolling import Stored
from stabilitylens.hooks.blackbox.sharded import write_shards
from stabilitylens.hooks.blackbox.snapshot import Snapshot

#: steps that a replay runs before the incident where there is a choice of snapshots: what leads to it is seen too. *Heuristic*.
LEAD = 4
#: bytes of a micro-batch's random states and numbers in a file, rounded up
_STATES = 1 << 16


@dataclass(frozen=True)
class Dump:
    """What is to be written.

    Attributes:
        step, kinds, reason: of the incident. setting: of this process.
        kept: the steps, the incident's last. stored: the snapshots. holds: whether this process keeps any.
        split: takes a snapshot apart into what is this process's alone and the shards of what is spread over several.
        budget: bytes of all incidents.
    """

    step: int
    kinds: Sequence[str]
    reason: str
    setting: dict[str, Any]
    kept: Sequence[StepRecord]
    stored: Sequence[Stored]
    holds: bool
    split: Callable[[Snapshot], tuple[Snapshot, dict[str, Any]]]
    budget: int

    @property
    def overwritten(self) -> int:
        """How many kept tensors have been changed in place by now."""
        return sum(len(m.keeping.overwritten()) for record in self.kept for m in record.micro)

    def usable(self) -> list[int]:
        """Steps whose snapshot can be run again from: every step since then has been kept."""
        first = self.kept[0].step if self.kept else self.step + 1
        return [s.step for s in self.stored if first <= s.step <= self.step]


def chosen(usable: Sequence[Sequence[int]], step: int) -> int | None:
    """Of the snapshots that every process has the newest that leaves some steps before the incident, else the newest."""
    common = sorted(set.intersection(*map(set, usable))) if usable else []
    early = [s for s in common if s <= step - LEAD]
    return early[-1] if early else common[-1] if common else None


def dump(incidents: Path, given: Dump, crowd: Alone) -> tuple[Path, list[str]]:
    """Write an incident; of several processes each has to call this.

    Returns:
        Its folder, and the names of older incidents that had to make room for it.

    Raises:
        TooLarge: it alone takes more than the budget; nothing older is removed.
    """
    left_out: dict[str, str] = {}
    said = crowd.exchange({"usable": given.usable(), "holds": given.holds, "any": bool(given.stored)})
    at = chosen([s["usable"] for s in said if s["holds"]], given.step)
    stored = next((s for s in given.stored if s.step == at), None)
    sizes = crowd.exchange([sum(r.size + _STATES * max(1, len(r.micro)) for r in given.kept), stored.size if stored else 0])
    batches, snapshots = (sum(s[i] for s in sizes) for i in (0, 1))
    if at is not None and batches + snapshots > given.budget:
        left_out["snapshot"] = f"its {snapshots / 1e6:.1f} MB are more than the {given.budget / 1e6:.1f} MB of budget_bytes leave"
        at, stored, snapshots = None, None, 0
    elif at is None and any(s["any"] for s in said):
        left_out["snapshot"] = "the micro-batches since then were not all kept: a larger keep= or max_bytes= keeps more"
    if batches > given.budget:
        raise folder.TooLarge(batches, given.budget)
    partial = folder.place(incidents, given.step)
    try:
        if crowd.writes:
            folder.begin(partial)
        crowd.exchange(None)
        _fill(partial, given, stored, crowd, left_out)
        return _finish(partial, given, at, crowd, left_out)
    except BaseException:
        if crowd.writes:
            folder.discard(partial)
        raise


def _finish(partial: Path, given: Dump, at: int | None, crowd: Alone, left_out: dict[str, str]) -> tuple[Path, list[str]]:
    """Give the incident its name, and have every process know how that went."""
    parts = crowd.exchange(left_out)
    gone: list[str] = []
    said: dict[str, Any] = {}
    if crowd.writes:
        several = {f"rank {r}: {p}" if len(parts) > 1 else p: why for r, part in enumerate(parts) for p, why in part.items()}
        several |= {"snapshot": left_out["snapshot"]} if "snapshot" in left_out else {}
        try:
            path, gone = folder.finish(partial, _manifest(given, at, crowd.world, several), given.budget)
            said = {"path": str(path)}
        except folder.TooLarge as error:
            said = {"wanted": error.wanted}
        except Exception as error:  # the others must not wait
            said = {"failed": f"{type(error).__name__}: {folder.first_line(error)}"}
    told = next(one for one in crowd.exchange(said) if one)
    if "wanted" in told:
        raise folder.TooLarge(told["wanted"], given.budget)
    if "failed" in told:
        raise OSError(f"an incident could not be written ({told['failed']})")
    return Path(told["path"]), gone


def _fill(partial: Path, given: Dump, stored: Stored | None, crowd: Alone, left_out: dict[str, str]) -> None:
    """Write this process's files, and with the others the shards."""
    files: dict[str, folder.Write] = {f"rank_{crowd.rank}/steps.pt": lambda path: _save_steps(path, given, left_out)}
    shards: dict[str, Any] = {}
    if stored is not None:
        left_out |= stored.left_out
        rest, shards = stored.apart(given.split)
        files[f"rank_{crowd.rank}/snapshot.pt"] = rest
    failed = ""
    try:
        folder.fill(partial, files)
    except Exception as error:  # the others must not wait
        failed = f"{type(error).__name__}: {folder.first_line(error)}"
    trouble = [f for f in crowd.exchange(failed) if f]
    if trouble:
        raise OSError(f"an incident could not be written ({trouble[0]})")
    if any(crowd.exchange(bool(shards))):
        write_shards(partial, shards)
        folder.sync_all(partial)


def _save_steps(path: Path, given: Dump, left_out: dict[str, str]) -> None:
    """Write the steps; once more where the thread that trains has overwritten a batch meanwhile."""
    known = -1
    while known != (known := given.overwritten):
        torch.save({record.step: record.settled(left_out) for record in given.kept}, path)


def _manifest(given: Dump, at: int | None, world: int, left_out: dict[str, str]) -> Manifest:
    steps = tuple({"step": r.step, "micro_batches": len(r.micro), "scalars": r.scalars} for r in given.kept)
    return Manifest(given.step, tuple(sorted(given.kinds)), given.reason, time.time(), world, at, steps, left_out, given.setting)
