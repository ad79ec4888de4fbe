"""What is known of a planned training run, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.rules._rule import in_words

TASKS = ("lm", "vision", "detection", "speech", "research")
PRECISIONS = ("bf16", "fp16", "fp32", "fp8")
OPTIMIZERS = ("adamw", "muon")
#: heuristic: the width of a head in most models of a billion parameters and more
HEAD = 128
#: heuristic: ten times as deep as any Transformer that was reported
DEEPEST = 10_000
#: the facts that must be whole numbers, if they are given
COUNTS = ("layers", "seq_len", "batch_size", "n_devices", "grad_accumulation", "width", "head_width")


@dataclass(frozen=True)
class Situation:
    """A plan; None means not given.

    Attributes:
        params: parameters of the model.
        layers: blocks; of an encoder and a decoder together.
        seq_len: tokens, patches or frames in a sample.
        batch_size: samples that a device sees in one forward.
        n_devices: devices that see different data.
        grad_accumulation: forwards that make up an optimizer step, on each device.
        task: one of ``TASKS``.
        precision: what the forward is planned to compute in.
        width, head_width: of the residual stream and of one head, in channels.
        optimizer: one of ``OPTIMIZERS``.
        lr: peak learning rate.
        multimodal: whether one stream mixes tokens of several modalities.
        variable_length: whether samples differ in length; by task where None.
    """

    params: float
    layers: int
    seq_len: int | None = None
    batch_size: int | None = None
    task: str = "lm"
    precision: str | None = None
    width: int | None = None
    head_width: int | None = None
    n_devices: int = 1
    grad_accumulation: int = 1
    optimizer: str = "adamw"
    lr: float | None = None
    multimodal: bool = False
    variable_length: bool | None = None

    def __post_init__(self) -> None:
        for name, known in (("task", TASKS), ("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
            value = getattr(self, name)
            if value not in known and not (name == "precision" and value is None):
                raise BadInput(f"{name} is {value!r}; it may be {', '.join(known[:-1])} or {known[-1]}")
        for name in ("params", "lr", *COUNTS):
            value = getattr(self, name)
            if value is not None:
                _check(name, value, whole=name in COUNTS)
        if self.layers > DEEPEST:
            raise BadInput(f"layers is {self.layers:,}; advice is for models of at most {DEEPEST:,}")
        if self.params < 1:
            raise BadInput(f"params is {self.params:g}; give the number of parameters, as 7e9")

    @property
    def samples_per_step(self) -> int | None:
        """Samples of an optimizer step over all devices."""
        return None if self.batch_size is None else self.batch_size * self.n_devices * self.grad_accumulation

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens of an optimizer step over all devices."""
        samples = self.samples_per_step
        return None if samples is None or self.seq_len is None else samples * self.seq_len

    @property
    def differs_in_length(self) -> bool:
        """Whether samples differ in length; text and speech do unless it is said that they do not."""
        return self.task in ("lm", "speech") if self.variable_length is None else self.variable_length

    def facts(self) -> dict[str, Any]:
        """What conditions may ask for."""
        derived = {"samples_per_step": self.samples_per_step, "tokens_per_step": self.tokens_per_step}
        return asdict(self) | derived | {"variable_length": self.differs_in_length}

    def words(self) -> dict[str, Any]:
        """What texts may mention."""
        return {name: f"{value:,}" if isinstance(value, int) else value for name, value in self.facts().items()} | {
            "branches": f"{2 * self.layers:,}"
        }

    @property
    def title(self) -> str:
        """E.g. ``lm of 70 billion parameters, 80 layers, 8,192 tokens``."""
        unit = "tokens" if self.task == "lm" else "positions"
        plural = "" if self.layers == 1 else "s"
        parts = [f"{self.task} of {in_words(self.params)} parameters", f"{self.layers} layer{plural}"]
        return ", ".join(parts + ([f"{self.seq_len:,} {unit}"] if self.seq_len is not None else []))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with what follows from what was given."""
        return self.facts()


def _check(name: str, value: Any, *, whole: bool) -> None:
    """Raise BadInput unless it is a positive number, and a whole one if it counts something."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0 or (whole and value != int(value)):
        kind = "a whole number of 1 or more" if whole else "a number above 0"
        raise BadInput(f"{name} is {value!r}; it must be {kind}")
