"""One forward and backward at initialisation: gradients and sizes by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._data import data
from stabilitylens.reproductions._model import fresh, loss_of


@dataclass(frozen=True)
class Initial:
    """What a fresh model shows on one batch.

    Attributes:
        gradients: L2 norm of the gradient of each layer's second feed-forward matrix.
        variances: variance of the stream after each layer, over tokens and features; the embedding's first.
    """

    gradients: Float[np.ndarray, " layer"]
    variances: Float[np.ndarray, " stream"]


def initial(choices: Choices, seed: int, batch: int = 4) -> Initial:
    """Make a model and look at one batch of text."""
    model = fresh(choices, seed)
    torch.manual_seed(seed)
    model.head.reset_parameters()  # models of one seed and other depths share the head, so that their comparison is less noisy
    streams: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda _, args: streams.append(args[0].detach()))
    for layer in model.layers:
        layer.register_forward_hook(lambda _, __, out: streams.append(out.detach()))
    inputs, targets = next(data("text", 1, batch, choices.context, choices.vocabulary, seed))
    loss_of(model(inputs), targets).backward()
    seconds = [m for name, m in model.named_modules() if name.endswith(".w2") and isinstance(m, nn.Linear)]
    gradients = [float(torch.linalg.vector_norm(m.weight.grad)) for m in seconds if m.weight.grad is not None]
    return Initial(np.array(gradients), np.array([float(x.double().var()) for x in streams]))


def slope(x: list[float], y: list[float]) -> float:
    """Least-squares slope of ln y against ln x; NaN where a value is not positive and finite."""
    if not all(0 < value < math.inf for value in (*x, *y)):
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
