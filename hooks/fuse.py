"""fuse_norms: a model's own norm layers run by the instrumented kernels, and unfuse, which takes that back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.hooks.norm_forms import FORMS
from stabilitylens.hooks.norm_listener import NormListener, tell_in_pytorch
from stabilitylens.hooks.norm_probe import Fit, fit, is_eligible
from stabilitylens.kernels._byproducts import NOBODY, listen
from stabilitylens.kernels._choice import uses_triton


@dataclass
class _Plan:
    """How a fused module runs; a copy of a module is told of anew."""

    fit: Fit
    listener: NormListener | None = None
    layer: int = field(default=NOBODY)

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Plan:
        return _Plan(self.fit)

    def __getstate__(self) -> dict[str, Any]:
        return {"fit": self.fit, "listener": None, "layer": NOBODY}


class FusedNorm(nn.Module):
    """Mixed into the class of a norm layer; parameters, names and hooks stay the layer's own."""

    _fused: _Plan

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's forward by the kernels; called in another way, or on another size, its own."""
        plan = self._fused
        x = args[0] if args else None
        if len(args) != 1 or kwargs or not isinstance(x, Tensor) or not x.dim() or x.shape[-1] != plan.fit.d:
            return super().forward(*args, **kwargs)
        form = FORMS[plan.fit.form]
        weight, bias = (None if n is None else self.get_parameter(n) for n in (plan.fit.weight, plan.fit.bias))
        if uses_triton(x, weight, bias):
            return form.launch(x, weight, bias, plan.fit.eps, plan.layer)
        y = form.formula(x, weight, bias, plan.fit.eps)
        if not torch.compiler.is_compiling():
            tell_in_pytorch(plan.layer, x, y)
        return y

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, (type(self).__mro__[2],), self.__dict__.copy()


_CLASSES: dict[Any, type[nn.Module]] = {}


def _fused_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The one class that fused layers of a class have."""
    if cls not in _CLASSES:
        _CLASSES[cls] = type(cls.__name__, (FusedNorm, cls), {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__})
    return _CLASSES[cls]


def _new(cls: type[nn.Module]) -> nn.Module:
    fused = _fused_class(cls)
    return fused.__new__(fused)


def _signature(module: nn.Module) -> Any:
    """What decides how a norm computes: class, plain attributes, shapes of parameters."""
    parts = []
    for inner in module.modules():
        plain = {k: v for k, v in inner.__dict__.items() if isinstance(v, (bool, int, float, str, tuple, torch.Size)) and k != "training"}
        shapes = {k: None if p is None else tuple(p.shape) for k, p in inner._parameters.items()}
        parts.append((type(inner), repr(sorted(plain.items())), repr(shapes)))
    return tuple(parts)


def _take(module: nn.Module, found: Fit) -> None:
    listener = NormListener(module)
    module.__class__ = _fused_class(type(module))
    module.__dict__["_fused"] = _Plan(found, listener, listen(listener))


def fuse_norms(model: nn.Module) -> tuple[str, ...]:
    """Have a model's norm layers run by the instrumented kernels, in place.

    LayerNorm and RMSNorm layers of Hugging Face, timm, torch.nn, x-transformers and others are found by what they
    compute: a layer is taken where a known form gives its outputs and gradients in every element, in fp32, bf16
    and fp16. In plain PyTorch (on the CPU) the results stay equal to the bit. On a GPU with Triton the kernels run
    in the layer's rounding mode, sums in another order. Parameters, the state dict, hooks and the class' name stay.
    While a lens samples a step, Moments of each layer's input, output and gradients go to its slots.

    Args:
        model: any model; fuse before ``torch.compile``.

    Returns:
        The names of the layers that were taken.

    Raises:
        BadInput: the model is no module.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"fuse_norms() needs a torch.nn.Module, not {type(model).__name__}")
    known: dict[Any, Fit | None] = {}
    names, taken = [], {inner for m in model.modules() if isinstance(m, FusedNorm) for inner in m.modules()}
    for name, module in model.named_modules():
        if module in taken or not is_eligible(module):
            continue
        signature = _signature(module)
        if signature not in known:
            known[signature] = fit(module)
        found = known[signature]
        if found is not None:
            _take(module, found)
            taken.update(module.modules())
            names.append(name)
    return tuple(names)


def unfuse(model: nn.Module) -> None:
    """Give every layer that :func:`fuse_norms` took its own class and forward back."""
    for module in model.modules():
        if isinstance(module, FusedNorm):
            module.__class__ = type(module).__mro__[2]
            module.__dict__.pop("_fused", None)
