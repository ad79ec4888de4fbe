"""What multiplies the gradients: a gradient scaler, whether the lens was told of it or not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Scaling:
    """The gradient scaler of a loop, if it has one.

    Args:
        scaler: as the loop told, None for none.
    """

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._looked = scaler is not None

    def now(self) -> Tensor | float | None:
        """The factor of the loss; None without a scaler."""
        return current_scale(self._scaler) if self._scaler is not None and self._scaler.is_enabled() else None

    def adopted(self) -> bool:
        """Whether the optimizer is being stepped by a scaler that nobody told of; looked for at the first step that is taken."""
        if self._looked:
            return False
        self._looked = True
        found = scaler_above()
        if found is None or not found.is_enabled():
            return False
        self._scaler = found
        return True

    def pending(self, optimizer: Optimizer | None, noted: Tensor | float | None) -> Tensor | float | None:
        """What still multiplies an optimizer's gradients: the factor that was noted, until the scaler has unscaled them."""
        return None if optimizer is not None and is_unscaled(self._scaler, optimizer) else noted

    def groups(self, optimizers: Sequence[Optimizer]) -> list[Optimizer | None]:
        """The optimizers one by one where the scaler has unscaled the gradients of some of them, else all at once."""
        return list(optimizers) if any(is_unscaled(self._scaler, o) for o in optimizers) else [None]


def current_scale(scaler: Any) -> Tensor | float:
    """The factor that a gradient scaler multiplies the loss by, as a copy on its device where it is one already."""
    scale = getattr(scaler, "_scale", None)
    return scale.detach().clone() if isinstance(scale, Tensor) else float(scaler.get_scale())


def scaler_above(depth: int = 12) -> Any:
    """The gradient scaler in whose ``step`` an optimizer is being stepped; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(depth):
        if frame is None:
            return None
        if frame.f_code.co_name == "_maybe_opt_step" or frame.f_code.co_name == "step":
            owner = frame.f_locals.get("self")
            if hasattr(owner, "unscale_") and hasattr(owner, "_per_optimizer_states"):
                return owner
        frame = frame.f_back
    return None


def is_unscaled(scaler: Any, optimizer: Optimizer) -> bool:
    """Whether a gradient scaler has divided an optimizer's gradients already in this step."""
    state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
    return getattr(state.get("stage"), "name", "READY") != "READY"
