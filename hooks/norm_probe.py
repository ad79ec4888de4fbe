"""Finds out by trying which form a module's norm has, or that it is none: names and classes tell nothing.

A copy of the module with random parameters is run on a few inputs in several dtypes; a form fits where outputs
and gradients are equal in every element.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.norm_forms import FORMS, Form

#: what no layer states but several take for granted
USUAL_EPS = (1e-5, 1e-6, 1e-8, 1e-12)
_HOOKS = tuple(name for name in nn.Module().__dict__ if name.endswith("_hooks"))


@dataclass(frozen=True)
class Fit:
    """A form with its eps, and which parameters are weight and bias."""

    form: str
    eps: float | None
    weight: str | None
    bias: str | None
    d: int


def _copy(module: nn.Module, generator: torch.Generator, dtype: torch.dtype) -> nn.Module:
    """With parameters of its own, and without hooks, which would see the trial."""
    bare = copy.copy(module)
    bare.__dict__ = {**module.__dict__, **{name: OrderedDict() for name in _HOOKS}}
    bare._parameters = {
        name: None if p is None else nn.Parameter((1 + torch.rand(p.shape, generator=generator)).to(dtype))
        for name, p in module._parameters.items()
    }
    bare._modules = {name: None if m is None else _copy(m, generator, dtype) for name, m in module._modules.items()}
    return bare


def _inputs(d: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Tokens of ordinary, tiny and large size, one of zeros: eps matters to the tiny."""
    sizes = torch.tensor([1.0, 2.0, 1e-3, 1e-4, 30.0, 0.0])[:, None, None]
    return (sizes * (torch.randn(6, 2, d, generator=generator) + 0.3)).to(dtype)


def _sizes(module: nn.Module) -> Iterator[int]:
    """What its last axis may be: as its parameters are, or as it says."""
    parameters = list(module.parameters())
    if parameters:
        yield from {p.numel() for p in parameters} if all(p.dim() == 1 for p in parameters) else ()
        return
    for inner in module.modules():
        for value in inner.__dict__.values():
            if isinstance(value, int) and not isinstance(value, bool) and value > 1:
                yield value
            elif isinstance(value, (tuple, list, torch.Size)) and len(value) == 1 and isinstance(value[0], int):
                yield value[0]


def _stated_eps(module: nn.Module) -> list[float | None]:
    values = [v for inner in module.modules() for v in inner.__dict__.values()]
    stated = [v for v in values if isinstance(v, float) and 0 < v < 0.1]
    return list(dict.fromkeys([*stated, *USUAL_EPS, None]))


def _names(module: nn.Module) -> Iterator[tuple[str | None, str | None]]:
    """Weight and bias, whichever parameter is which."""
    names = [name for name, _ in module.named_parameters()]
    if len(names) == 2:
        yield from ((names[0], names[1]), (names[1], names[0]))
    else:
        yield (names[0] if names else None), None


def is_eligible(module: nn.Module) -> bool:
    """Whether it may be a norm at all: at most two vectors of parameters, no buffers, no mere holder, an unpatched forward."""
    parameters = list(module.parameters())
    return (
        len(parameters) <= 2
        and all(p.dim() == 1 and p.is_floating_point() and not p.is_meta for p in parameters)
        and next(module.buffers(), None) is None
        and "forward" not in module.__dict__
        and not hasattr(module, "parametrizations")
        and (not module._modules or any(p is not None for p in module._parameters.values()))
        and len(list(module.modules())) <= 3
    )


def _results(call: Any, x: Tensor, parameters: list[Tensor]) -> list[Tensor] | None:
    """Output and gradients, None where it can't be called so."""
    leaf = x.clone().requires_grad_()
    try:
        with torch.enable_grad():
            y = call(leaf)
            if not isinstance(y, Tensor) or y.shape != x.shape or not y.requires_grad:
                return None
            seed = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
            grads = torch.autograd.grad(y, [leaf, *parameters], seed, allow_unused=True)
    except Exception:  # whatever a module that is no norm does with such an input
        return None
    return None if any(g is None for g in grads) else [y.detach(), *grads]


def _equal(a: list[Tensor] | None, b: list[Tensor]) -> bool:
    return a is not None and all(x.dtype is y.dtype and torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(a, b, strict=True))


def _fits(form: Form, eps: float | None, trials: list[Any], weight: str | None, bias: str | None) -> bool:
    for x, named, wanted in trials:
        w, b = (None if name is None else named[name] for name in (weight, bias))
        got = _results(lambda t: form.formula(t, w, b, eps), x, list(named.values()))  # noqa: B023
        if not _equal(got, wanted):
            return False
    return True


def _trials(module: nn.Module, d: int) -> list[Any]:
    """Inputs, parameters and what the module makes of them; none where it takes no such input."""
    generator, trials = torch.Generator().manual_seed(0), []
    for dtype, weights in ((torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), (torch.bfloat16, torch.float32)):
        bare = _copy(module, generator, weights)
        x, named = _inputs(d, dtype, generator), dict(bare.named_parameters())
        wanted = _results(lambda t: type(bare).forward(bare, t), x, list(named.values()))  # noqa: B023
        if wanted is None and dtype is weights:
            return []
        if wanted is not None:
            trials.append((x, named, wanted))
    return trials


def fit(module: nn.Module) -> Fit | None:
    """The form that a module has, None where it has none of those that are known."""
    for d in dict.fromkeys(_sizes(module)):
        trials = _trials(module, d)
        if not trials or torch.equal(trials[0][2][0], trials[0][0]):
            continue
        for name, form in FORMS.items():
            for eps in _stated_eps(module) if form.with_eps else [None]:
                for weight, bias in _names(module):
                    if _fits(form, eps, trials, weight, bias):
                        return Fit(name, eps if form.with_eps else 0.0, weight, bias, d)
    return None
