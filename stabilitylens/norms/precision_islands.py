"""Precision islands: norms kept in fp32 inside a block that computes in 16 or 8 bits, and the error that saves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from stabilitylens.errors import BadInput
from stabilitylens.norms._norm import chosen

Precision = Literal["bf16", "fp16", "int8"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.float32}


class PrecisionIsland(nn.Module):
    """Runs a norm in fp32, whatever dtype it is given, and keeps its parameters in fp32 when the model is cast.

    Source: mixed-precision practice, Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740 (section 3.3).
    Defaults: results go back to the dtype of the first input.
    Known failure: none of the numbers that were rounded before the norm come back.

    Args:
        inner: the norm; one that is not in fp32 is copied, not cast.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        floating = [t for t in (*inner.parameters(), *inner.buffers()) if t.is_floating_point()]
        self.inner = inner if all(t.dtype is torch.float32 for t in floating) else copy.deepcopy(inner).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PrecisionIsland:
        """Follow moves to another device, not casts: they would round values that no cast back restores."""
        before = {name: (t.detach(), None if t.grad is None else t.grad.detach()) for name, t in self._held()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, t in self._held():
            value, grad = before[name]
            if t.dtype is not value.dtype:
                t.grad = None
                t.data = value.to(t.device)
                t.grad = None if grad is None else grad.to(t.device)
        return self

    def _held(self) -> list[tuple[str, Tensor]]:
        return [*self.named_parameters(), *self.named_buffers()]

    def forward(self, x: Float[Tensor, "*row d"], *args: Any, **kwargs: Any) -> Any:
        """Normalise in fp32; all floating-point arguments go there and all results come back."""
        more, named = (tree_map_only(Tensor, _to_fp32, given) for given in (args, kwargs))
        with torch.autocast(x.device.type, enabled=False):
            out = self.inner(_to_fp32(x), *more, **named)
        return tree_map_only(Tensor, lambda y: y.to(x.dtype) if y.is_floating_point() else y, out)


def _to_fp32(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() else x


class _Rounded(nn.Module):
    """A norm in the dtype of its input: every operation rounds, as in code that never casts."""

    def __init__(self, inner: nn.Module, centred: bool) -> None:
        super().__init__()
        self.inner, self.centred = inner, centred

    def forward(self, x: Tensor) -> Tensor:
        h = x - x.mean(-1, keepdim=True) if self.centred else x
        h = h / torch.sqrt((h * h).mean(-1, keepdim=True) + float(getattr(self.inner, "eps", 1e-6)))
        weight, bias = (getattr(self.inner, n, None) for n in ("weight", "bias"))
        h = h if weight is None else h * weight
        return h if bias is None else h + bias


def quantized(x: Float[Tensor, "*shape d"], per_row: bool) -> Float[Tensor, "*shape d"]:
    r"""Rounded to 255 levels: $s\,\mathrm{round}(x / s)$ with $s = \max|x| / 127$, over a row or over all."""
    largest = x.abs().amax(-1, keepdim=True) if per_row else x.abs().amax()
    step = (largest / 127).clamp(min=torch.finfo(x.dtype).tiny)
    return step * torch.round(x / step)


def _quantize(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (quantized(args[0], per_row=False), *args[1:])


def _quantize_result(_module: nn.Module, _args: tuple[Any, ...], out: Tensor) -> Tensor:
    return quantized(out, per_row=False)


def _set(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, module)


def lowered(
    model: nn.Module, norms: dict[str, bool], precision: Precision, islands: bool
) -> nn.Module:
    """A copy of a block in low precision, its norms in fp32 or in low precision too.

    Args:
        model: the block, in fp32.
        norms: names of its norms, and whether each takes the mean away.
        precision: ``bf16`` or ``fp16``, or ``int8``: weights of linear layers rounded to 8 bits a row and what
            enters them to 8 bits a tensor, norms too unless they are islands.
        islands: whether the norms stay in fp32.

    Raises:
        BadInput: there is no such precision, or no module of a norm's name.
    """
    chosen(precision, Precision, "precision=")
    for name in norms.keys() - dict(model.named_modules()).keys():
        raise BadInput(f"the block has no module called {name!r}")
    model = copy.deepcopy(model)
    for module in model.modules():
        if precision == "int8" and isinstance(module, nn.Linear):
            module.weight.data = quantized(module.weight.data, per_row=True)
            module.register_forward_pre_hook(_quantize)
    for name, centred in norms.items():
        inner = model.get_submodule(name)
        if islands:
            _set(model, name, PrecisionIsland(inner))
        elif precision == "int8":
            inner.register_forward_pre_hook(_quantize)
            inner.register_forward_hook(_quantize_result)
        else:
            _set(model, name, _Rounded(inner, centred))
    return model.to(_DTYPES[precision])


@torch.no_grad()
def island_error(
    model: nn.Module, norms: dict[str, bool], x: Float[Tensor, "*row d"], precision: Precision, islands: bool
) -> float:
    r"""Relative error $\lVert y_{low} - y \rVert / \lVert y \rVert$ of a block in low precision; see :func:`lowered`."""
    block = lowered(model, norms, precision, islands)
    exact: Tensor = model(x).double()
    low: Tensor = block(x.to(_DTYPES[precision])).double()
    return float(torch.linalg.vector_norm(low - exact) / torch.linalg.vector_norm(exact))
