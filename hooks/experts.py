"""Where the experts of a mixture keep their parameters, and the gradient of each.

Experts are found by structure: several modules alike in a list, or parameters of three dimensions with a common
first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.shares import first_row, part_of
from stabilitylens.kernels import sum_of_squares


@dataclass(frozen=True)
class Experts:
    """Experts that one router chooses among.

    Attributes:
        count: how many.
        fused: parameters that hold those of several, one after the other along the first axis, with how many they hold.
        single: the parameters of each, where each is a module.
    """

    count: int
    fused: tuple[tuple[nn.Parameter, int], ...] = ()
    single: tuple[tuple[nn.Parameter, ...], ...] = ()

    def and_also(self, other: Experts) -> Experts:
        """Both together: one expert may keep its matrices in several places."""
        both = self.single and other.single
        single = tuple(a + b for a, b in zip(self.single, other.single, strict=True)) if both else self.single or other.single
        return Experts(self.count, self.fused + other.fused, single)


def _signature(module: nn.Module) -> tuple[Any, ...]:
    return (type(module), *(p.shape for p in module.parameters()))


def _held(module: nn.Module) -> Experts | None:
    """The experts that a module itself holds."""
    children = list(module.children()) if isinstance(module, (nn.ModuleList, nn.ModuleDict)) else []
    if len(children) > 1 and len(set(map(_signature, children))) == 1 and any(p.dim() > 1 for p in children[0].parameters()):
        return Experts(len(children), single=tuple(tuple(c.parameters()) for c in children))
    own = [p for p in module.parameters(recurse=False) if p.dim() >= 2]
    counts = {p.shape[0] for p in own if p.dim() == 3}
    if not counts or max(counts) < 2:
        return None
    return Experts(max(counts), fused=tuple((p, p.shape[0]) for p in own if p.shape[0] in counts))


def find_experts(modules: Mapping[nn.Module, str], blocks: Iterable[str]) -> dict[str, list[Experts]]:
    """What may be experts, by the name of the module in which they are routed to.

    Args:
        modules: canonical name of each module.
        blocks: names of the blocks; what is outside them is none.
    """
    found: dict[str, dict[int, Experts]] = {}
    starts = tuple(f"{block}." for block in blocks)
    for module, name in modules.items():
        held = _held(module) if name.startswith(starts) else None
        if held is not None:
            home = found.setdefault(name.rpartition(".")[0], {})
            home[held.count] = home[held.count].and_also(held) if held.count in home else held
    return {home: list(by_count.values()) for home, by_count in found.items()}


@torch.no_grad()
def gradient_rows(experts: Experts, scale: Tensor | float | None = None) -> Tensor | None:
    """Rows of the tap ``expert_grad``, of shape (expert, field); None where no expert has a gradient.

    Args:
        experts: whose.
        scale: what multiplies the gradients, divided out.
    """
    fused = [(p, n, part) for p, n in experts.fused if (part := _part(p)) is not None]
    single = [(i, part) for i, each in enumerate(experts.single) for p in each if (part := _part(p)) is not None]
    if not fused and not single:
        return None
    rows = torch.zeros(experts.count, 2, dtype=torch.float64, device=(fused or single)[0][-1].device)
    for parameter, held, part in fused:
        mine = torch.arange(len(part), device=part.device) + first_row(parameter)
        flat = part.reshape(len(part), -1) if part.numel() else part.new_zeros(len(part), 1)
        of_rows = torch.stack((torch.full_like(mine, part[:1].numel(), dtype=torch.float64), _squares_of_rows(flat)), -1)
        rows.index_add_(0, mine * held // parameter.shape[0], of_rows)
    for i, part in single:
        rows[i, 0] += part.numel()
        rows[i, 1] += sum_of_squares(part)
    if scale is not None:
        rows[:, 1] /= scale * scale
    return rows


def _part(parameter: nn.Parameter) -> Tensor | None:
    """What this process holds of a gradient."""
    return None if parameter.grad is None else part_of(parameter.grad, parameter)


def _squares_of_rows(part: Tensor) -> Tensor:
    wide = torch.float64 if part.dtype is torch.float64 else torch.float32
    norms: Tensor = torch.linalg.vector_norm(part, dim=1, dtype=wide)
    return norms.double().square()
