"""Recipe: how a model is trained, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Recipe:
    """Optimizer and schedule; None means not known.

    Attributes:
        optimizer: class name, e.g. ``AdamW``.
        lr: largest learning rate over the parameter groups at attach.
        beta1, beta2, eps, weight_decay: of the first parameter group that has them.
        max_grad_norm: the clip threshold.
        warmup_steps, total_steps: in optimizer steps.
        precision: ``fp32``, ``bf16`` or ``fp16``: what the forward computes in.
        loss_scaling: whether a gradient scaler is used.
    """

    optimizer: str | None = None
    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    warmup_steps: int | None = None
    total_steps: int | None = None
    precision: str | None = None
    loss_scaling: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the header of a run."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """From plain data; keys that this version does not know are left out."""
        return cls(**{k: v for k, v in data.items() if k in cls.__dataclass_fields__})
