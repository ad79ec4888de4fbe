"""A dumped incident, read back and checked."""

from __future__ import annotations

import pickle
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.folder import dumped
from stabilitylens.hooks.blackbox.manifest import NAME, Manifest, check_files, read_manifest
from stabilitylens.hooks.blackbox.plain import as_given
from stabilitylens.hooks.blackbox.randoms import RandomState
from stabilitylens.hooks.blackbox.snapshot import Snapshot

#: where a run keeps its incidents, inside its folder
INCIDENTS = Path("stabilitylens") / "incidents"


class Evidence:
    """What was kept of an incident; every file of it has the checksum that was written with it.

    Args:
        given: the folder of the incident, or of a run, whose newest incident is taken.
        rank: of several processes whose part is read.

    Attributes:
        folder: the incident's.
        manifest: what it says of itself.

    Raises:
        BadInput: it is no dumped incident, or a damaged one.
    """

    def __init__(self, given: str | PathLike[str], rank: int = 0) -> None:
        self.folder = _folder(given)
        self.manifest: Manifest = read_manifest(self.folder)
        check_files(self.folder, self.manifest)
        self.rank = rank
        self._steps: dict[int, dict[str, Any]] = self._load("steps.pt", rank)

    def _load(self, name: str, rank: int) -> Any:
        path = self.folder / f"rank_{rank}" / name
        if not path.is_file():
            raise BadInput(f"{self.folder} holds nothing of rank {self.rank}; it was written by {self.manifest.world} process(es)")
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, OSError, pickle.UnpicklingError, EOFError, KeyError, ValueError) as error:
            raise BadInput(f"{path} can't be loaded as plain data: {str(error).splitlines()[0]}") from error

    @property
    def step(self) -> int:
        """Of the incident."""
        return self.manifest.step

    @property
    def steps(self) -> list[int]:
        """The steps whose micro-batches were kept, in order."""
        return sorted(self._steps)

    def batches(self, step: int) -> list[Any]:
        """The micro-batches of a step, as the loop had them; copies that may be changed.

        Raises:
            BadInput: they were not kept, or not whole.
        """
        micro = self._of(step)["micro"]
        lacks = sorted({place for m in micro for place in m["lacks"]})
        if lacks or not micro:
            what = f"lack {', '.join(lacks)}" if lacks else "were not seen"
            why = next((w for p, w in self.manifest.left_out.items() if lacks and p == f"step {step}: {lacks[0]}"), "")
            raise BadInput(f"the micro-batches of step {step} {what}{f' ({why})' if why else ''}, so it can't be run again")
        return [as_given(m["batch"]) for m in micro]

    def ids(self, step: int) -> list[Any]:
        """The ids that the loop gave with each micro-batch of a step; None where it gave none."""
        return [m["ids"] for m in self._of(step)["micro"]]

    def randoms(self, step: int) -> tuple[list[RandomState], list[RandomState]]:
        """The random states before each micro-batch of a step, and before each forward of the model."""
        record = self._of(step)
        return [m["random"] for m in record["micro"]], record["forwards"]

    def scalar(self, step: int, name: str) -> float | None:
        """A number of a step as this process had it; None where it was not observed."""
        value: float | None = self._of(step)["scalars"].get(name)
        return value

    def standing(self, step: int) -> list[str] | None:
        """Gradients that were there before the step of the snapshot and that the loop added to; None where it is not known."""
        names: list[str] | None = self._of(step)["standing"]
        return names

    def groups(self, step: int) -> dict[int, list[dict[str, Any]]]:
        """Learning rate and the like of each optimizer's groups at a step, for the optimizers that stepped."""
        groups: dict[int, list[dict[str, Any]]] = self._of(step)["groups"]
        return groups

    def _of(self, step: int) -> dict[str, Any]:
        if step not in self._steps:
            kept = f"{self.steps[0]} to {self.steps[-1]}" if self._steps else "none"
            raise BadInput(f"nothing of step {step} was kept; kept are steps {kept}: a larger keep= or max_bytes= keeps more")
        return self._steps[step]

    def snapshot(self) -> Snapshot:
        """The state that the training is run again from.

        Raises:
            BadInput: none was kept.
        """
        if self.manifest.snapshot_step is None:
            why = self.manifest.left_out.get("snapshot", "attach with blackbox=stabilitylens.BlackBox(snapshot_every=…) to have one")
            raise BadInput(f"no snapshot was kept before step {self.step}, so it can't be run again: {why}")
        own = (self.folder / f"rank_{self.rank}" / "snapshot.pt").is_file()
        return Snapshot(**self._load("snapshot.pt", self.rank if own else 0))  # of replicas one is kept


def _folder(given: str | PathLike[str]) -> Path:
    if not str(given) or not hasattr(given, "__fspath__") and type(given) is not str:
        raise BadInput(f"replay() needs the folder of a dumped incident as its first argument, not {given!r}")
    folder = Path(given)
    if not folder.is_dir():
        raise BadInput(f"{folder} is no folder; give that of a dumped incident, incidents/step_…")
    inside = dumped(folder / INCIDENTS) if not (folder / NAME).exists() else []
    if not inside and (folder / INCIDENTS.parent).is_dir():
        raise BadInput(f"nothing was dumped in the run {folder}: no step went wrong while a black box watched, and lens.dump() was not called")
    return inside[-1] if inside else folder
