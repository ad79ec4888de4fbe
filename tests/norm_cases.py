"""What the tests of the norms share: tokens, parameters that are not one and zero, and the mean square."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from torch import nn

D = 16


@pytest.fixture(name="untyped")
def without_types(monkeypatch):
    """Without the checks of types under pytest, which come before the layers' own and don't compile."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def randomised(layer: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return layer


def tokens(*shape: int, dtype=torch.float64, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1)) + 0.5


def rms(x):
    return x.square().mean(-1, keepdim=True)
