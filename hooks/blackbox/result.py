"""What a replay found, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stabilitylens.beside import REPLAY

if TYPE_CHECKING:
    from stabilitylens.hooks.blackbox.samples import Samples
    from stabilitylens.hooks.blackbox.swap import Cause


@dataclass(frozen=True)
class Values:
    """Of the floating-point tensors that went into or came out of something.

    Attributes:
        count: elements. absmax, rms: over the finite ones. nan, inf: so many elements that are not finite; the minus
            infinity of a mask is none of them.
    """

    count: int
    absmax: float
    rms: float
    nan: int
    inf: int

    @property
    def finite(self) -> bool:
        """Whether all of them are."""
        return self.nan == 0 and self.inf == 0


@dataclass(frozen=True)
class Frame:
    """One call of a module in one direction.

    Attributes:
        step: of the run. module: its name in the model, ``""`` for the model itself. kind: its class. call: of this module
            in the step, from 0.
        direction: ``forward``, or ``backward``, where input is the gradient of the module's outputs and output that of
            its inputs and parameters.
        input, output: None where there are no floating-point tensors.
        parameter: in the backward the first of its parameters whose gradient is not finite.
    """

    step: int
    module: str
    kind: str
    call: int
    direction: Literal["forward", "backward"]
    input: Values | None
    output: Values | None
    parameter: str = ""


@dataclass(frozen=True)
class FirstBad:
    """Where it began to go wrong.

    Attributes:
        what: ``nonfinite``, ``outlying``, ``logits`` for attention logits that are too large, or ``weights`` where parameters were
            not finite before the step.
        step, module, direction: of its frame.
        frame: None where the weights or the logits are to blame.
        before: the frames that came just before it, in order.
        sentence: for a person.
        rank: of several processes the one in which it began.
    """

    what: Literal["nonfinite", "outlying", "logits", "weights"]
    step: int
    module: str
    direction: Literal["forward", "backward"]
    frame: Frame | None
    before: tuple[Frame, ...]
    sentence: str
    rank: int | None = None


@dataclass(frozen=True)
class Replay:
    """A dumped incident, run again.

    Attributes:
        folder: of the incident. step, kinds: its. snapshot_step: the first step that was run again.
        losses, recorded: of each step that was run again, as this process has them, NaN where none was observed.
        exact: there were recorded losses, and every one came out equal to the bit, NaN as NaN, in all processes.
        difference: how they differ and what differs from the recorded setting; empty where they are equal.
        first_bad: the first module that goes wrong; None where none does.
        samples: which rows of the batch, see :class:`stabilitylens.hooks.blackbox.samples.Samples`.
        cause: data or state, see :class:`stabilitylens.hooks.blackbox.swap.Cause`.
        text: all of it for a person.
    """

    folder: str
    step: int
    kinds: tuple[str, ...]
    snapshot_step: int
    losses: dict[int, float]
    recorded: dict[int, float]
    exact: bool
    difference: str
    first_bad: FirstBad | None
    samples: Samples | None = None
    cause: Cause | None = None
    text: str = field(default="", compare=False)

    def save(self) -> Path:
        """Write it beside the incident's folder, whole or not at all, where a post-mortem of the run looks for it.

        Raises:
            OSError: it can't be written.
        """
        return REPLAY.write(Path(self.folder), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """As dictionaries, lists and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        return self.text
