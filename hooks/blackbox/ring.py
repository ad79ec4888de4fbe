"""The last steps: their micro-batches, the random states before them, and what the loop told of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.weak import TensorWeakRef

from stabilitylens.hooks.blackbox.plain import MASKED, Keeping, mapped, own_storage
from stabilitylens.hooks.blackbox.randoms import RandomState, plain


@dataclass
class MicroBatch:
    """One micro-batch: what was kept of it, the random states before it, and what was kept of its ids."""

    batch: Any
    random: RandomState
    keeping: Keeping
    ids: Any
    keeping_ids: Keeping

    @property
    def size(self) -> int:
        """Bytes of what is kept."""
        return self.keeping.size + self.keeping_ids.size

    def settled(self, step: int, left_out: dict[str, str]) -> dict[str, Any]:
        """The micro-batch as plain data; what has been overwritten in place since is None, and said."""
        changed = self.keeping.overwritten()
        left_out |= {f"step {step}: {place}": why for place, why in (self.keeping.left_out | self.keeping_ids.left_out).items()}
        left_out |= {f"step {step}: {place}": "it was overwritten in place after the step had begun" for place in changed.values()}
        batch = mapped(self.batch, lambda leaf: None if id(leaf) in changed else own_storage(leaf))
        lacks = sorted({*changed.values(), *(p for p, why in self.keeping.left_out.items() if why != MASKED)})
        return {"batch": batch, "ids": self.ids, "random": plain(self.random), "lacks": lacks}


@dataclass
class StepRecord:
    """One step.

    Attributes:
        step: its number, known when it has ended.
        micro: its micro-batches, in order.
        forwards: the random states before each training forward of the model, in order.
        groups: what each optimizer's parameter groups said when it stepped: learning rate and the like.
        scalars: loss, gradient norm and the like, as the lens recorded them.
        left: where a snapshot was taken, the parameters that had a gradient, and that one.
        standing: the names of those that were added to rather than replaced; None where no optimizer stepped.
    """

    step: int = 0
    micro: list[MicroBatch] = field(default_factory=list)
    forwards: list[RandomState] = field(default_factory=list)
    groups: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    left: dict[str, tuple[Tensor, TensorWeakRef]] = field(default_factory=dict)
    standing: list[str] | None = None

    def look_at_gradients(self) -> None:
        """When the optimizer steps: which gradients that were there before the step have not been cleared since."""
        if self.standing is None:
            self.standing = [name for name, (p, reference) in self.left.items() if p.grad is not None and reference() is p.grad]
            self.left.clear()

    @property
    def size(self) -> int:
        """Bytes of its micro-batches."""
        return sum(m.size for m in self.micro)

    def settled(self, left_out: dict[str, str]) -> dict[str, Any]:
        """The step as plain data that ``torch.load(weights_only=True)`` loads."""
        return {
            "micro": [m.settled(self.step, left_out) for m in self.micro],
            "forwards": [plain(state) for state in self.forwards],
            "groups": self.groups,
            "scalars": self.scalars,
            "standing": self.standing,
        }


class Ring:
    """A bounded number of steps of a bounded size; the oldest goes first, the newest stays.

    Args:
        steps: how many are kept.
        limit: bytes of all their micro-batches.
    """

    def __init__(self, steps: int, limit: int) -> None:
        self._steps, self._limit = steps, limit
        self._records: deque[StepRecord] = deque()
        self._size = 0

    def add(self, record: StepRecord) -> None:
        """Keep a step that has ended."""
        self._records.append(record)
        self._size += record.size
        while len(self._records) > self._steps or (self._size > self._limit and len(self._records) > 1):
            self._size -= self._records.popleft().size

    def upto(self, step: int) -> list[StepRecord]:
        """The steps that are kept, in order, none after a step."""
        return [record for record in self._records if record.step <= step]

    def clear(self) -> None:
        """Forget every step."""
        self._records.clear()
        self._size = 0
