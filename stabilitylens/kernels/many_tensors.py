"""Sums of squares of many tensors at once: what parameters, gradients and updates are measured by.

One pass over the memory. Rows of 4096 elements are summed in fp32, whose error is then that of 4096 terms, and rows
add up in fp64; what overflows fp32 is done again in fp64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.kernels.tensor_moments import rows_of


def sums_of_squares(tensors: Sequence[Tensor]) -> Float[Tensor, " tensor"]:
    r"""$\sum x^2$ of each tensor, fp64, on the device of the first; inf or NaN only where an element is.

    Args:
        tensors: of any shapes and floating dtypes; empty ones have 0.
    """
    parts, owner = [], []
    for i, x in enumerate(tensors):
        for rows in rows_of(x):
            parts.append(torch.linalg.vector_norm(rows, dim=1))
            owner.append((i, len(rows)))
    device = tensors[0].device if tensors else torch.device("cpu")
    totals = torch.zeros(len(tensors), dtype=torch.float64, device=device)
    if not parts:
        return totals
    norms = torch.cat([part.to(device).double() for part in parts] if _mixed(parts) else parts).double()
    index = torch.repeat_interleave(*(torch.tensor(column, device=device) for column in zip(*owner, strict=True)))
    totals.index_add_(0, index, norms.square_())
    return _again(tensors, totals)


def _mixed(parts: Sequence[Tensor]) -> bool:
    return len({(part.dtype, part.device) for part in parts}) > 1


def _again(tensors: Sequence[Tensor], totals: Tensor) -> Tensor:
    """In fp64 what is not finite; on other devices than the CPU looking would wait for them."""
    if totals.device.type == "cpu" and not torch.isfinite(totals).all():
        for i in torch.nonzero(~torch.isfinite(totals)).flatten().tolist():
            totals[i] = tensors[i].detach().double().square().sum()
    return totals


def norm_moments(tensors: Sequence[Tensor]) -> Float[Tensor, "tensor field"]:
    """The fields of ``Moments`` of each tensor that one pass gives: count, ``sum_sq``, ``nonfinite``; the others are NaN."""
    totals = sums_of_squares(tensors)
    table = totals.new_full((len(tensors), 6), torch.nan)
    table[:, 0] = torch.tensor([x.numel() for x in tensors], dtype=torch.float64)
    table[:, 3] = totals
    table[:, 5] = 0
    for i in _suspicious(totals):
        table[i, 5] = tensors[i].numel() - torch.isfinite(tensors[i].detach()).sum().double()
    return table


def _suspicious(totals: Tensor) -> Iterable[int]:
    """Those that may hold NaN or inf: on the CPU the totals tell, elsewhere looking at them would wait for them."""
    if totals.device.type != "cpu":
        return range(len(totals))
    return torch.nonzero(~torch.isfinite(totals)).flatten().tolist()
