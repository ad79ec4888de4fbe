"""fuse_norms: a model's own norm layers run by the instrumented kernels, and unfuse, which takes that back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.hooks.norm_forms import FORMS
from stabilitylens.hooks.norm_listener import NormListener
from stabilitylens.hooks.norm_probe import OF_TORCH, Fit, fit, is_eligible, signature
from stabilitylens.kernels._byproducts import NOBODY, listen
from stabilitylens.kernels._choice import uses_triton


@dataclass
class _Plan:
    """How a fused module runs; a copy of a module is told of anew."""

    fit: Fit | None
    listener: NormListener | None = None
    layer: int = field(default=NOBODY)

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Plan:
        return _Plan(self.fit)

    def __getstate__(self) -> dict[str, Any]:
        return {"fit": self.fit, "listener": None, "layer": NOBODY}


def _alike(old: nn.Parameter | None, new: Any) -> bool:
    return old is not None and isinstance(new, nn.Parameter) and new.shape == old.shape


class Watched(nn.Module):
    """Mixed into the class of a norm layer and of its parts: where something about it changes, its own forward runs again."""

    _fused: _Plan

    def __setattr__(self, name: str, value: Any) -> None:
        alike = _alike(self._parameters.get(name), value)
        super().__setattr__(name, value)
        if name not in OF_TORCH and not alike:
            self._fused.fit = None

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._fused.fit = None

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As torch's."""
        alike = _alike(self._parameters.get(name), param)
        super().register_parameter(name, param)
        if not alike:
            self._fused.fit = None

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """As torch's."""
        super().register_buffer(name, tensor, persistent)
        self._fused.fit = None

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """As torch's."""
        super().add_module(name, module)
        self._fused.fit = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        made = _made(self)
        if type(self) is not made:
            return super().__reduce_ex__(protocol)
        return _new, (made.__bases__[0], made.__bases__[1]), self.__dict__.copy()


class FusedNorm(Watched):
    """Mixed into the class of a norm layer; parameters, names and hooks stay the layer's own."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's forward by the kernels; called in another way, or on what it was not tried on, its own."""
        plan, x = self._fused, args[0] if args else None
        found = plan.fit
        if found is None or len(args) != 1 or kwargs or not isinstance(x, Tensor):
            return super().forward(*args, **kwargs)
        weight, bias = _parameter(self, found.weight), _parameter(self, found.bias)
        gone = (weight is None) != (found.weight is None) or (bias is None) != (found.bias is None)
        if gone or not found.covers(x, weight):
            return super().forward(*args, **kwargs)
        form = FORMS[found.form]
        if uses_triton(x, weight, bias):
            weight = weight if weight is None else weight.expand(found.d)
            return form.launch(x, weight, bias, found.eps, plan.layer)
        return form.in_pytorch(x, weight, bias, found.eps, plan.layer)


def _parameter(module: nn.Module, name: str | None) -> Tensor | None:
    if name is None:
        return None
    owner, _, last = name.rpartition(".")
    return (module.get_submodule(owner) if owner else module)._parameters.get(last)


_CLASSES: dict[tuple[type, type], type[nn.Module]] = {}


def _class(mixin: type[Watched], cls: type[nn.Module]) -> type[nn.Module]:
    """The one class that fused layers of a class have."""
    if (mixin, cls) not in _CLASSES:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        _CLASSES[mixin, cls] = type(cls.__name__, (mixin, cls), names)
    return _CLASSES[mixin, cls]


def _made(module: nn.Module) -> type:
    """The class that was made for a watched module; others, as of a parametrization, may lie over it."""
    return next(c for c in type(module).__mro__ if c in _CLASSES.values())


def _new(mixin: type[Watched], cls: type[nn.Module]) -> nn.Module:
    made = _class(mixin, cls)
    return made.__new__(made)


def _take(module: nn.Module, found: Fit) -> None:
    listener = NormListener(module)
    plan = _Plan(found, listener, listen(listener))
    for inner in module.modules():
        inner.__class__ = _class(FusedNorm if inner is module else Watched, type(inner))
        inner.__dict__["_fused"] = plan


def _release(module: nn.Module) -> None:
    """Its own class again, and those of its parts."""
    for inner in [m for m in module.modules() if isinstance(m, Watched)]:
        made, over = _made(inner), type(inner)
        own: type = made.__bases__[1]
        if over is not made:
            bases = tuple(own if base is made else base for base in over.__bases__)
            own = type(over.__name__, bases, {k: v for k, v in vars(over).items() if k not in ("__dict__", "__weakref__")})
        inner.__class__ = own
        inner.__dict__.pop("_fused", None)


def _check(model: Any, name: str) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"{name}() needs a torch.nn.Module, not {f'the class {model.__name__}' if isinstance(model, type) else type(model).__name__}")


def fuse_norms(model: nn.Module) -> tuple[str, ...]:
    """Have a model's norm layers run by the instrumented kernels, in place.

    LayerNorm and RMSNorm layers of Hugging Face, timm, torch.nn, x-transformers and others are found by what they
    compute: a layer is taken where a known form gives its outputs and gradients in every element, in fp32, bf16
    and fp16, in training and in evaluation, on inputs of 1 to 5 axes. In plain PyTorch (on the CPU) the results stay
    equal to the bit. On a GPU with Triton the kernels run in the layer's rounding mode, sums in another order.
    Parameters, the state dict, hooks and the class' name stay. On what the layer was not tried on, and once one of its
    attributes or parameters is replaced, its own forward runs; call ``fuse_norms`` again to have it tried again.
    While a lens samples a step, Moments of each layer's input, output and gradients go to its slots.

    Args:
        model: any model; fuse before ``torch.compile``.

    Returns:
        The names of the layers that were taken.

    Raises:
        BadInput: the model is no module.
    """
    _check(model, "fuse_norms")
    for module in list(model.modules()):
        if isinstance(module, FusedNorm) and module._fused.fit is None:
            _release(module)
    known: dict[Any, Fit | None] = {}
    names, taken = [], {inner for m in model.modules() if isinstance(m, Watched) for inner in m.modules()}
    for name, module in model.named_modules():
        if module in taken or not is_eligible(module) or any(inner in taken for inner in module.modules()):
            continue
        kind = signature(module)
        if kind not in known:
            known[kind] = fit(module)
        found = known[kind]
        if found is not None:
            _take(module, found)
            taken.update(module.modules())
            names.append(name)
    return tuple(names)


def unfuse(model: nn.Module) -> None:
    """Give every layer that :func:`fuse_norms` took its own class and forward back.

    Raises:
        BadInput: the model is no module.
    """
    _check(model, "unfuse")
    for module in list(model.modules()):
        if isinstance(module, FusedNorm):
            _release(module)
