"""Recipe: how a model is trained, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """From plain data; keys that this version does not know are left out."""
        return cls(**{k: v for k, v in data.items() if k in cls.__dataclass_fields__})

    @classmethod
    def from_optimizer(cls, optimizer: Any) -> Recipe:
        """What an optimizer in the style of PyTorch says of itself.

        Args:
            optimizer: anything with ``param_groups``, a list of dicts. A schedule's ``initial_lr`` counts
                as a learning rate, for the one in ``lr`` is 0 at the start of a warm-up.
        """
        groups = optimizer.param_groups
        rates = [float(group[key]) for group in groups for key in ("lr", "initial_lr") if key in group]
        first = {key: value for group in reversed(groups) for key, value in group.items()}
        beta1, beta2 = (float(beta) for beta in first["betas"][:2]) if "betas" in first else (None, None)
        return cls(
            optimizer=type(optimizer).__name__,
            lr=max(rates, default=None),
            beta1=beta1,
            beta2=beta2,
            eps=_number(first.get("eps")),
            weight_decay=_number(first.get("weight_decay")),
        )


def _number(value: Any) -> float | None:
    """A number or a tensor of one; None for what is neither, as Adafactor's pair of ``eps``."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
