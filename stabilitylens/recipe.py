"""Recipe: how a model is trained, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """Optimizer, schedule, numbers and data; None means not known.

    Attributes:
        optimizer: class name, e.g. ``AdamW``.
        lr: largest learning rate over the parameter groups at attach.
        beta1, beta2, eps, weight_decay: of the first parameter group that has them.
        max_grad_norm: the clip threshold; 0 says that gradients are not clipped.
        warmup_steps, total_steps: in optimizer steps.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``fp8``: what the forward computes in.
        loss_scaling: whether a gradient scaler is used.
        batch_size: samples that a device sees in one forward.
        grad_accumulation: forwards that make up an optimizer step, on each device.
        n_devices: devices that see different data.
        seq_len: tokens in a sample.
        embedding_weight_decay: weight decay of the token embeddings.
        norm_precision: what the statistics of normalisation layers are computed in, as ``precision``.
        param_precision: what the parameters that the optimizer updates are kept in, as ``precision``.
        scaled_init: whether output projections of branches start smaller in deeper models, as by 1/√(2·layers).
        qk_clip: largest attention logit at which query and key weights are rescaled.
        task: ``lm`` for language models, else ``vision``, ``detection``, ``speech`` or another word.
        multimodal: whether one stream mixes tokens of several modalities.
        notes: what reading it from a file left out or filled in, a sentence each.
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
    batch_size: int | None = None
    grad_accumulation: int | None = None
    n_devices: int | None = None
    seq_len: int | None = None
    embedding_weight_decay: float | None = None
    norm_precision: str | None = None
    param_precision: str | None = None
    scaled_init: bool | None = None
    qk_clip: float | None = None
    task: str | None = None
    multimodal: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def samples_per_step(self) -> int | None:
        """Samples of an optimizer step over all devices; None where a factor is not known."""
        if self.batch_size is None or self.grad_accumulation is None or self.n_devices is None:
            return None
        return self.batch_size * self.grad_accumulation * self.n_devices

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the header of a run."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """From plain data; keys that this version does not know are left out."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        return cls(**known | {"notes": tuple(known.get("notes", ()))})

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
