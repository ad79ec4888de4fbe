"""The state of every random number generator that a training step may draw from, taken and put back."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomStates:
    """Generators of Python, NumPy (the global one), torch, and torch's on the device of the model."""

    python: Any
    numpy: Any
    host: Tensor
    device: Tensor | None = None
    where: torch.device | None = None

    @classmethod
    def now(cls, device: torch.device) -> RandomStates:
        """As they are; nothing is drawn."""
        module: Any = getattr(torch, device.type, None) if device.type not in ("cpu", "meta") else None
        state = module.get_rng_state(device) if hasattr(module, "get_rng_state") else None
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), state, device)

    def restore(self) -> None:
        """Put them back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.host)
        if self.device is not None and self.where is not None:
            getattr(torch, self.where.type).set_rng_state(self.device, self.where)
