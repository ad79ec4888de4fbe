"""What the black box is asked to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from stabilitylens.errors import BadInput

MEGABYTE, GIGABYTE = 1 << 20, 1 << 30

#: a function from a batch to what may be kept of it, or the names of fields that may not be kept
Mask = Callable[[Any], Any] | Iterable[str]


@dataclass(frozen=True)
class BlackBox:
    """How much is kept around an incident; given to :func:`stabilitylens.attach` as ``blackbox=``.

    Args:
        keep: so many of the last steps keep their micro-batches and random states; at least those since the older
            of the two snapshots.
        snapshot_every: weights and optimizer state are copied every so many steps, and the last two copies are kept; 0 is
            never, and without a snapshot an incident can be looked at, not replayed.
        snapshot: where the copies are: in the host's ``"memory"``, or on ``"disk"``, written by a thread.
        max_bytes: of all kept micro-batches together; the oldest step goes first.
        budget_bytes: of all dumped incidents of the run on disk; the oldest goes first.
        mask: names of fields that are never kept, as ``["labels"]``, or a function from a batch to what is kept of it.
        scheduler: the learning-rate scheduler, or a list of them, so that its state is in the snapshot.

    Raises:
        BadInput: a number is out of range.
    """

    keep: int = 16
    snapshot_every: int = 0
    snapshot: Literal["memory", "disk"] = "memory"
    max_bytes: int = 256 * MEGABYTE
    budget_bytes: int = 4 * GIGABYTE
    mask: Mask = ()
    scheduler: Any = None

    def __post_init__(self) -> None:
        for name, least in (("keep", 1), ("snapshot_every", 0), ("max_bytes", 1), ("budget_bytes", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise BadInput(f"BlackBox({name}={value!r}) is no whole number of {least} or more; give one")
        if self.snapshot not in ("memory", "disk"):
            raise BadInput(f"BlackBox(snapshot={self.snapshot!r}) names no place; it is 'memory' or 'disk'")
        if isinstance(self.mask, (str, bytes)) or not (callable(self.mask) or isinstance(self.mask, Iterable)):
            raise BadInput(f"BlackBox(mask={self.mask!r}) is neither a list of names of fields nor a function of a batch")
        if not callable(self.mask):
            object.__setattr__(self, "mask", tuple(self.mask))  # an iterator would name its fields once
            if not all(isinstance(name, (str, int)) for name in self.mask):
                raise BadInput(f"BlackBox(mask={self.mask!r}) names what is no field's name; give texts, as in ['labels']")
        for one in self.scheduler if isinstance(self.scheduler, (list, tuple)) else [self.scheduler]:
            if one is not None and not callable(getattr(one, "state_dict", None)):
                raise BadInput(f"BlackBox(scheduler={self.scheduler!r}) holds a {type(one).__name__}, which has no state_dict(); give a scheduler")

    @property
    def steps(self) -> int:
        """Steps whose micro-batches are kept: all that lie between the older snapshot and the present one."""
        return max(self.keep, 2 * self.snapshot_every)

    @property
    def hidden(self) -> frozenset[str]:
        """Names of the fields that are never kept."""
        return frozenset() if callable(self.mask) else frozenset(self.mask)


def options_of(given: Any) -> BlackBox | None:
    """From what ``attach(blackbox=…)`` was given.

    Raises:
        BadInput: it is neither a :class:`BlackBox` nor True, False or None.
    """
    if given is None or given is False:
        return None
    if given is True:
        return BlackBox()
    if not isinstance(given, BlackBox):
        raise BadInput(f"attach() needs True or a stabilitylens.BlackBox as blackbox=, not {type(given).__name__}")
    return given
