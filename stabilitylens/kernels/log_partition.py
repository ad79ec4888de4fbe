"""Statistics of output logits: the log-partition function ln Z and the largest magnitude."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

#: elements in a chunk of rows, so that the fp32 copy of a large vocabulary stays small
CHUNK = 1 << 22


def log_partition(logits: Float[Tensor, "*position vocabulary"]) -> Float[Tensor, " field"]:
    r"""The fields of ``LogitMoments``, fp64: rows, $\sum \ln Z$ in nat with $Z = \sum_j e^{z_j}$, largest |z|."""
    flat = logits.detach().reshape(-1, logits.shape[-1])
    row = torch.zeros(3, dtype=torch.float64, device=logits.device)
    row[0], row[2] = flat.shape[0], -torch.inf
    for part in flat.split(max(1, CHUNK // flat.shape[1])):
        low, high = torch.aminmax(part)
        row[1] += torch.logsumexp(part.float(), -1).double().sum()
        row[2] = torch.maximum(row[2], torch.maximum(-low, high).double())
    return row
