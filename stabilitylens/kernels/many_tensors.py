"""Sums of squares of many tensors at once: what parameters, gradients and updates are measured by.

One pass over the memory. Rows of 256 elements are summed in fp32, whose error is then that of 256 terms, and rows
add up in fp64; what overflows fp32 is done again in fp64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.kernels._choice import uses_triton
from stabilitylens.kernels.tensor_moments import nonfinite, rows_of


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds: the local shard of a DTensor, else the tensor itself.

    Rows of shards add up over ranks to those of the whole; a replicated tensor would count once a rank.
    """
    to_local = getattr(tensor, "to_local", None)
    local: Tensor = tensor if to_local is None else to_local()
    return local.detach()


def _launched(tensors: Sequence[Tensor]) -> Float[Tensor, "tensor field"] | None:
    """All fields of ``Moments`` in one launch for each dtype, where the tensors are on a GPU."""
    if not tensors or not uses_triton(*tensors):
        return None
    from stabilitylens.kernels._gpu.tensors_launch import many_moments

    return many_moments(tensors)


def sums_of_squares(tensors: Sequence[Tensor]) -> Float[Tensor, " tensor"]:
    r"""$\sum x^2$ of each tensor, fp64, on the device of the first; inf or NaN only where an element is.

    Args:
        tensors: of any shapes and floating dtypes; empty ones have 0, and of a DTensor the local shard is read.
    """
    tensors = [local_part(x) for x in tensors]
    rows = _launched(tensors)
    if rows is not None:
        return rows[:, 3]
    parts, owner = [], []
    for i, x in enumerate(tensors):
        for part in rows_of(x):
            parts.append(torch.linalg.vector_norm(part, dim=1))
            owner.append((i, len(part)))
    device = tensors[0].device if tensors else torch.device("cpu")
    totals = torch.zeros(len(tensors), dtype=torch.float64, device=device)
    if not parts:
        return totals
    norms = torch.cat([part.to(device).double() for part in parts] if _mixed(parts) else parts).double()
    which, lengths = (torch.tensor(column, device=device) for column in zip(*owner, strict=True))
    index = torch.repeat_interleave(which, lengths, output_size=sum(length for _, length in owner))
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
    """The fields of ``Moments`` of each tensor that one pass gives: count, ``sum_sq``, ``nonfinite``.

    The sums are NaN and the largest is -inf, as in any row that has not observed them.
    """
    tensors = [local_part(x) for x in tensors]
    rows = _launched(tensors)
    if rows is not None:
        return _unseen(rows)
    totals = sums_of_squares(tensors)
    table = _unseen(totals.new_zeros(len(tensors), 6))
    table[:, 0] = torch.tensor([x.numel() for x in tensors], dtype=torch.float64)
    table[:, 3] = totals
    for i in _suspicious(totals):
        table[i, 5] = nonfinite(tensors[i], totals[i])
    return table


def _unseen(rows: Tensor) -> Tensor:
    rows[:, 1:3] = torch.nan
    rows[:, 4] = -torch.inf
    return rows


def _suspicious(totals: Tensor) -> Iterable[int]:
    """Those that may hold NaN or inf: on the CPU the totals tell, elsewhere looking at them would wait for them."""
    if totals.device.type != "cpu":
        return range(len(totals))
    return torch.nonzero(~torch.isfinite(totals)).flatten().tolist()
