"""The gains of normalisation layers and the slopes of their element-wise stand-ins, as the forward uses them.

A layer normalises where a fused norm runs in it, or a root or a variance of its input is taken; the one-dimensional
weight that multiplies the activations there is its gain, be it the parameter itself or 1 + w made of it. In DyT and
Derf the slope is the weight whose product with the input goes into tanh or erf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stabilitylens.hooks.functions import After, Function, named
from stabilitylens.hooks.origins import PRODUCTS, WEIGHTED
from stabilitylens.hooks.provenance import Provenance

FUSED = named("layer_norm", "rms_norm", "group_norm", "batch_norm", "native_layer_norm")
STATISTICS = named("rsqrt", "sqrt", "std", "var", "var_mean", "std_mean", "normalize", "norm") | {torch.linalg.vector_norm}
BOUNDED = named("tanh", "erf") | {torch.special.erf}
MULTIPLY = named("mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply")
DERIVE = named("add", "__add__", "__radd__", "float", "to", "type_as")
Kind = Literal["norm_gain", "dyt_alpha"]


def _weight_of(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gain that a fused norm was given."""
    if "weight" in kwargs:
        return kwargs["weight"]
    place = {"batch_norm": 3}.get(getattr(func, "__name__", ""), 2)
    return args[place] if len(args) > place else None


def weight_row(kind: Kind, weight: Tensor) -> Tensor:
    """The row of a tap: how many elements, and the sum of the slopes or of the magnitudes of the gains."""
    whole = weight.double().sum() if kind == "dyt_alpha" else torch.linalg.vector_norm(weight.double(), 1)
    return torch.stack((torch.full_like(whole, weight.numel()), whole))


class GainWatch:
    """Hands each gain and each slope to ``emit``, with what it is.

    Args:
        emit: called with ``norm_gain`` or ``dyt_alpha`` and the weight.
        module: the module that is running, with a number that tells its calls apart.
    """

    def __init__(self, emit: Callable[[Kind, Tensor], None], module: Callable[[], Any]) -> None:
        self._emit, self._module = emit, module
        self._made_of: Provenance[bool] = Provenance()
        self._sloped: Provenance[Tensor] = Provenance()
        self._normalises: Any = None
        self.after: dict[Function, After] = (
            dict.fromkeys(FUSED, self._fused)
            | dict.fromkeys(STATISTICS, self._statistic)
            | dict.fromkeys(BOUNDED, self._bound)
            | dict.fromkeys(MULTIPLY, self._multiply)
            | dict.fromkeys(DERIVE, self._derive)
            | dict.fromkeys(WEIGHTED | PRODUCTS, self._product)
        )

    def clear(self) -> None:
        """Forget every tensor."""
        self._made_of.clear()
        self._sloped.clear()
        self._normalises = None

    def _fused(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], _out: Any) -> None:
        weight = _weight_of(func, args, kwargs)
        if isinstance(weight, Tensor):
            self._emit("norm_gain", weight)
        else:
            self._normalises = self._module()

    def _statistic(self, *_: Any) -> None:
        self._normalises = self._module()

    def _product(self, *_: Any) -> None:
        self._normalises = None  # what is multiplied after it is no longer the normalised input

    def _derive(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], out: Any) -> None:
        if not isinstance(out, Tensor):
            return
        for x in args[:2]:
            if self._is_weight(x) and out.shape == x.shape:
                self._made_of.set(out, True)
            elif isinstance(x, Tensor):
                self._sloped.set(out, self._sloped.get(x))

    def _is_weight(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dim() <= 1 and (isinstance(x, nn.Parameter) or self._made_of.get(x) is not None)

    def _multiply(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], out: Any) -> None:
        for weight, other in (args[:2], args[1::-1]):
            if not self._is_weight(weight) or not isinstance(other, Tensor) or other.dim() < 2:
                continue
            if weight.dim() == 1 and weight.numel() > 1 and self._normalises == self._module():
                self._normalises = None
                self._emit("norm_gain", weight)
            else:
                self._sloped.set(out, weight)
            return

    def _bound(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], _out: Any) -> None:
        slope = self._sloped.get(args[0])
        if slope is not None:
            self._normalises = self._module()
            self._emit("dyt_alpha", slope)
