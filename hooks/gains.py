"""The gains of normalisation layers and the slopes of their element-wise stand-ins, as the forward uses them.

A layer normalises where a fused norm runs in it, or a root or a variance of its input is taken; the one-dimensional
weight that multiplies the activations there is its gain, be it the parameter itself or 1 + w made of it, and whether it
comes before the division or after it, in the same module or in the one around it. In DyT and
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
NORMALIZE = named("normalize")
#: what a statistic is made of on its way to the root
TOWARDS = named("pow", "__pow__", "pow_", "square", "mean", "sum")
DIVIDE = named("div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide")
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
        self._weighted: Provenance[tuple[Tensor, Any]] = Provenance()
        self._of_weighted: Provenance[bool] = Provenance()
        self._statistics: Provenance[bool] = Provenance()
        self._normed: Provenance[bool] = Provenance()
        self._normalises: Any = None
        self.after: dict[Function, After] = (
            dict.fromkeys(FUSED, self._fused)
            | dict.fromkeys(STATISTICS, self._statistic)
            | dict.fromkeys(TOWARDS, self._towards)
            | dict.fromkeys(BOUNDED, self._bound)
            | dict.fromkeys(MULTIPLY, self._multiply)
            | dict.fromkeys(DIVIDE, self._divide)
            | dict.fromkeys(DERIVE, self._derive)
            | dict.fromkeys(WEIGHTED | PRODUCTS, self._product)
        )

    def clear(self) -> None:
        """Forget every tensor."""
        for known in (self._made_of, self._sloped, self._weighted, self._of_weighted, self._statistics, self._normed):
            known.clear()
        self._normalises = None

    def _fused(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        weight = _weight_of(func, args, kwargs)
        if isinstance(weight, Tensor):
            self._emit("norm_gain", weight)
        else:
            self._normalises = self._module()
            self._normed.set(out, True)

    def _statistic(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self._normalises = self._module()
        if isinstance(out, Tensor):
            (self._normed if func in NORMALIZE else self._statistics).set(out, True)
            self._towards(func, args, kwargs, out)

    def _towards(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """A step to a statistic; a power of one half is a root of it."""
        if self._weighted.get(args[0]) is not None or self._of_weighted.get(args[0]) is not None:
            self._of_weighted.set(out, True)
        root = func in TOWARDS and len(args) > 1 and isinstance(args[1], float) and args[1] in (0.5, -0.5)
        if root and out.dim() > 1 and out.shape[-1] == 1:
            self._statistic(func, args[:1], kwargs, out)

    def _product(self, *_: Any) -> None:
        self._normalises = None  # what is multiplied after it is no longer the normalised input

    def _derive(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], out: Any) -> None:
        if not isinstance(out, Tensor):
            return
        sums = len(args) > 1 and all(isinstance(x, Tensor) and x.shape == out.shape for x in args[:2])
        for x in args[:2]:
            if self._is_weight(x) and out.shape == x.shape:
                self._made_of.set(out, True)
            elif isinstance(x, Tensor):
                self._sloped.set(out, self._sloped.get(x))
                if not sums:
                    self._pass_on(x, out)

    def _is_weight(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dim() <= 1 and (isinstance(x, nn.Parameter) or self._made_of.get(x) is not None)

    def _pass_on(self, before: Any, after: Any) -> None:
        """What keeps the values, up to a number, keeps what they are."""
        if isinstance(after, Tensor) and isinstance(before, Tensor) and after.shape == before.shape:
            self._weighted.set(after, self._weighted.get(before))
            for known in (self._of_weighted, self._statistics, self._normed):
                known.set(after, known.get(before))

    def _divide(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], out: Any) -> None:
        if len(args) > 1 and isinstance(args[1], Tensor) and args[1].numel() > 1:
            self._normalised(args[0], args[1], out)
        else:
            self._pass_on(args[0], out)

    def _normalised(self, x: Any, by: Any, out: Any) -> bool:
        """Whether values are divided by a statistic of theirs; a weight that they were multiplied by meanwhile is the gain."""
        if self._statistics.get(by) is None or not isinstance(x, Tensor) or by.dim() != x.dim() or by.shape == x.shape:
            return False
        weight, module = self._weighted.get(x) or (None, None)
        if weight is None or module != self._module() or self._of_weighted.get(by) is not None:
            self._normed.set(out, True)
        else:
            self._normalises = None
            self._emit("norm_gain", weight)
        return True

    def _multiply(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], out: Any) -> None:
        for weight, other in (args[:2], args[1::-1]):
            if self._normalised(other, weight, out):
                return
            if not isinstance(weight, Tensor) or weight.numel() == 1:
                self._pass_on(other, out)
            if not self._is_weight(weight) or not isinstance(other, Tensor) or other.dim() < 2:
                continue
            normalised = self._normalises == self._module() or self._normed.get(other) is not None
            if weight.dim() == 1 and weight.numel() > 1 and normalised:
                self._normalises = None
                self._emit("norm_gain", weight)
            else:
                self._sloped.set(out, weight)
                if weight.dim() == 1 and weight.numel() > 1:
                    self._weighted.set(out, (weight, self._module()))
            return

    def _bound(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], _out: Any) -> None:
        slope = self._sloped.get(args[0])
        if slope is not None:
            self._normalises = self._module()
            self._emit("dyt_alpha", slope)
