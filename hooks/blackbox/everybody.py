"""What the processes that replay together tell each other."""

from __future__ import annotations

from os import PathLike
from typing import Any, TypeVar

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.evidence import Evidence
from stabilitylens.hooks.blackbox.manifest import Manifest
from stabilitylens.hooks.distributed import distributed

T = TypeVar("T")


def gathered(own: T) -> list[T]:
    """What each process gives, in the order of their ranks; all of them have to ask. A list of one where there is one process."""
    dist = distributed()
    if dist is None:
        return [own]
    given: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(given, own)
    return given


def opened(incident: str | PathLike[str]) -> Evidence:
    """This process's part of a dumped incident.

    Raises:
        BadInput: it is none, or damaged, or was written by another number of processes.
    """
    dist = distributed()
    evidence = Evidence(incident, 0 if dist is None else dist.get_rank())
    here = 1 if dist is None else dist.get_world_size()
    if evidence.manifest.world != here:
        raise BadInput(f"{evidence.folder} was written by {evidence.manifest.world} process(es) together, and here are {here}; start as many")
    return evidence


class Recorded:
    """What all processes recorded of a dumped incident, as one; all of them have to make it.

    Attributes:
        step: the incident's. steps: those that every process kept, in order. manifest: the incident's.
    """

    NAMES = ("loss", "grad_norm", "grad_norm_clipped")

    def __init__(self, evidence: Evidence) -> None:
        self.step: int = evidence.step
        self.manifest: Manifest = evidence.manifest
        own = {step: {name: evidence.scalar(step, name) for name in self.NAMES} for step in evidence.steps}
        self._everybody = gathered(own)
        self.steps = sorted(set.intersection(*(set(one) for one in self._everybody)))

    def scalar(self, step: int, name: str) -> float | None:
        """The mean of what the processes had; None where one had none."""
        values = [one[step][name] for one in self._everybody]
        known = [v for v in values if v is not None]
        return sum(known) / len(known) if len(known) == len(values) else None
