"""Finds out by trying which form a module's norm has, or that it is none: names and classes tell nothing.

A copy of the module with random parameters is run on inputs of several shapes, sizes and dtypes, in training and in
evaluation; a form fits where outputs and gradients are equal in every element, and the module leaves no trace.
"""

from __future__ import annotations

import contextlib
import types
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.norm_forms import FORMS
from stabilitylens.hooks.norm_trials import Setting, Trial, optional, required, results, same

#: what no layer states but several take for granted
USUAL_EPS = (1e-5, 1e-6, 1e-8, 1e-12)
#: attributes that every module has
OF_TORCH = frozenset(nn.Module().__dict__)
_HOOKS = tuple(name for name in nn.Module().__dict__ if name.endswith("_hooks"))
_PLAIN = (bool, int, float, str, bytes, type(None), type, torch.dtype, torch.device, types.FunctionType, types.BuiltinFunctionType)


@dataclass(frozen=True)
class Fit:
    """A form with its eps, which parameters are weight and bias, and the inputs on which it was found to be the layer's.

    Attributes:
        dims: numbers of axes.
        dtypes: of input and parameters.
    """

    form: str
    eps: float | None
    weight: str | None
    bias: str | None
    d: int
    dims: tuple[int, ...] = ()
    dtypes: tuple[tuple[torch.dtype, torch.dtype], ...] = ()

    def covers(self, x: Tensor, parameter: Tensor | None) -> bool:
        """Whether the layer was found to do this to such an input."""
        dtypes = (x.dtype, x.dtype if parameter is None else parameter.dtype)
        return x.dim() in self.dims and x.shape[-1] == self.d and dtypes in self.dtypes


class _Unsteady(Exception):
    """The module does otherwise in training than in evaluation, draws random numbers, or stores something."""


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """What a forward may read beside parameters, buffers and modules."""
    return {k: v for k, v in module.__dict__.items() if k not in OF_TORCH and k != "_fused"}


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, (tuple, frozenset)) else isinstance(value, _PLAIN)


def is_eligible(module: nn.Module) -> bool:
    """Whether it may be a norm at all, and one whose computation can't change unnoticed.

    At most two vectors of parameters, no buffers, no mere holder, unpatched forwards, no hooks on its parts (which
    would no longer run), and attributes that can't change in place: no tensors, lists, or objects.
    """
    parameters, inner = list(module.parameters()), list(module.modules())
    return (
        len(parameters) <= 2
        and all(p.dim() == 1 and p.is_floating_point() and not p.is_meta for p in parameters)
        and next(module.buffers(), None) is None
        and not hasattr(module, "parametrizations")
        and (not module._modules or any(p is not None for p in module._parameters.values()))
        and len(inner) <= 3
        and not any("forward" in m.__dict__ for m in inner)
        and not any(m.__dict__[hooks] for m in inner[1:] for hooks in _HOOKS)
        and all(_is_plain(v) for m in inner for v in own_attributes(m).values())
    )


def signature(module: nn.Module) -> Any:
    """All that decides how an eligible module computes: layers of which it is equal share a trial."""
    return tuple(
        (
            name,
            type(inner),
            frozenset((k, type(v), repr(v), v) for k, v in own_attributes(inner).items()),
            tuple((k, None if p is None else tuple(p.shape)) for k, p in inner._parameters.items()),
        )
        for name, inner in module.named_modules(remove_duplicate=False)
    )


def _copy(module: nn.Module, generator: torch.Generator, setting: Setting, training: bool) -> nn.Module:
    """With parameters of its own, and without hooks, which would see the trial."""
    bare: nn.Module = object.__new__(type(module))
    bare.__dict__.update({**module.__dict__, **{name: OrderedDict() for name in _HOOKS}, "training": training})
    bare.__dict__["_parameters"] = {
        name: None if p is None else nn.Parameter(setting.parameter(p.shape, generator)) for name, p in module._parameters.items()
    }
    bare.__dict__["_modules"] = {
        name: None if m is None else _copy(m, generator, setting, training) for name, m in module._modules.items()
    }
    return bare


def _held(module: nn.Module) -> list[tuple[str, Any]]:
    return [item for m in module.modules() for held in (m.__dict__, m._parameters, m._modules) for item in held.items()]


def _classes(module: nn.Module) -> dict[type, dict[str, Any]]:
    return {c: dict(vars(c)) for m in module.modules() for c in type(m).__mro__ if issubclass(c, nn.Module) and c is not nn.Module}


def _leaves_no_trace(before: Any, after: Any) -> bool:
    return len(before) == len(after) and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(before, after, strict=True))


def _put_back(classes: dict[type, dict[str, Any]]) -> bool:
    """Whether nothing was stored in a class; what was is taken back."""
    changed = False
    for cls, before in classes.items():
        for name, value in list(vars(cls).items()):
            if name not in before:
                delattr(cls, name)
            elif before[name] is not value:
                setattr(cls, name, before[name])
            changed |= before.get(name) is not value
    return not changed


def _outcome(module: nn.Module, d: int, setting: Setting, training: bool) -> Trial | None:
    generator = torch.Generator().manual_seed(setting.seed)
    bare = _copy(module, generator, setting, training)
    x = setting.inputs(d, generator)
    given = {name: p.detach().clone().requires_grad_() for name, p in bare.named_parameters()}
    held, classes, state = _held(bare), _classes(bare), torch.get_rng_state()
    wanted = results(lambda t: type(bare).forward(bare, t), x, list(bare.parameters()), setting.autocast)
    if not _put_back(classes) or not _leaves_no_trace(held, _held(bare)) or not torch.equal(state, torch.get_rng_state()):
        raise _Unsteady
    return None if wanted is None else Trial(setting, x, given, wanted)


def _trial(module: nn.Module, d: int, setting: Setting) -> Trial | None:
    """What the module makes of inputs, None where it takes none such."""
    training, evaluation = (_outcome(module, d, setting, mode) for mode in (True, False))
    if (training is None) != (evaluation is None) or (training and evaluation and not same(training.wanted, evaluation.wanted)):
        raise _Unsteady
    return evaluation


def _sizes(module: nn.Module) -> Iterator[int]:
    """What its last axis may be: as its parameters are, or as it says; some keep the root of it."""
    of_parameters = {p.numel() for p in module.parameters()}
    yield from of_parameters
    if of_parameters - {1}:
        return
    for inner in module.modules():
        for value in own_attributes(inner).values():
            if isinstance(value, int) and not isinstance(value, bool) and value > 1:
                yield value
            elif isinstance(value, (tuple, torch.Size)) and len(value) == 1 and isinstance(value[0], int):
                yield value[0]
            elif isinstance(value, float) and 1 < value < 1e3 and round(value**2) ** 0.5 == value:
                yield round(value**2)


def _stated_eps(module: nn.Module) -> list[float | None]:
    values = [v for inner in module.modules() for v in own_attributes(inner).values()]
    stated = [v for v in values if isinstance(v, float) and 0 < v < 1]
    return list(dict.fromkeys([*stated, *USUAL_EPS, None]))


def _names(module: nn.Module) -> Iterator[tuple[str | None, str | None]]:
    """Weight and bias, whichever parameter is which."""
    names = [name for name, _ in module.named_parameters()]
    if len(names) == 2:
        yield from ((names[0], names[1]), (names[1], names[0]))
    else:
        yield (names[0] if names else None), None


def _candidates(module: nn.Module, d: int) -> Iterator[Fit]:
    for name, form in FORMS.items():
        for eps in _stated_eps(module) if form.with_eps else [None]:
            for weight, bias in _names(module):
                yield Fit(name, eps, weight, bias, d)


def _fits(fit: Fit, trial: Trial | None) -> bool:
    if trial is None:
        return True
    w, b = (None if name is None else trial.given[name] for name in (fit.weight, fit.bias))
    form = FORMS[fit.form]
    got = results(lambda t: form.formula(t, w, b, fit.eps), trial.x, list(trial.given.values()), trial.setting.autocast)
    return got is not None and same(got, trial.wanted)


def _found(module: nn.Module, d: int) -> Fit | None:
    """The first form that fits in all that the module takes."""
    settings = list(required())
    trials = [_trial(module, d, setting) for setting in settings if setting.must]
    if any(t is None or same(t.wanted[:1], [t.x]) for t in trials):
        return None
    others: list[Trial | None] | None = None
    for candidate in _candidates(module, d):
        if all(_fits(candidate, t) for t in trials):
            others = [_trial(module, d, s) for s in settings if not s.must] if others is None else others
            if all(_fits(candidate, t) for t in others):
                return _with_range(candidate, module, [t for t in (*trials, *others) if t is not None])
    return None


def _with_range(fit: Fit, module: nn.Module, taken: list[Trial]) -> Fit:
    """The fit with what it was found on."""
    more = [t for setting in optional() if (t := _trial(module, fit.d, setting)) is not None and _fits(fit, t)]
    dims = tuple(sorted({t.setting.dims for t in taken}))
    return replace(fit, dims=dims, dtypes=tuple(dict.fromkeys(t.setting.dtypes for t in (*taken, *more))))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Independent of the default device, inference mode and autocast around it, and of the global random numbers."""
    with (
        torch.random.fork_rng(devices=[]),
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        warnings.catch_warnings(action="ignore"),
    ):
        yield


def fit(module: nn.Module) -> Fit | None:
    """The form that an eligible module has, None where it has none of those that are known."""
    with _alone(), contextlib.suppress(_Unsteady):
        for d in dict.fromkeys(_sizes(module)):
            found = _found(module, d)
            if found is not None:
                return found
    return None
