"""Tell what an opaque operation is from how it behaves: a norm, a saturating stand-in for one, or attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]

_FACTORS = (8.0, 64.0)  # two: a saturating function may look unchanged at one
_LOOSE = {torch.float32: 0.02, torch.float64: 0.02}  # relative; epsilon still shows at the first factor
_HALF = 0.05
_LARGE = 1e4
_LEVELS = (0.5, 0.75, 0.9)  # of saturation
_TANH_OR_ERF = 1.11  # between 1.18 (tanh) and 1.04 (erf): ratio of the distances between those levels
_STEPS = 40  # of a bisection


def probe(function: Function, inputs: Sequence[Tensor], learned: bool) -> tuple[str, float | None]:
    """Classify a function by calling it on random numbers of the shapes it was given.

    Args:
        function: takes as many tensors as ``inputs`` has.
        inputs: the activations it was called with.
        learned: whether it also reads a single learned number, as DyT and Derf do.

    Returns:
        ``layernorm``, ``rmsnorm``, ``l2``, ``groupnorm``, ``dyt``, ``derf``, ``attention``, or "" where it is none of
        these; and the α of ``dyt`` and ``derf``.
    """
    generator = torch.Generator(inputs[0].device).manual_seed(0)
    drawn = [torch.randn(t.shape, generator=generator, device=t.device).to(t.dtype) for t in inputs]
    try:
        if len(drawn) >= 3:
            return ("attention" if _attends(function, drawn) else ""), None
        return _one_input(_Single(function, drawn[1:]), drawn[0], learned) if len(drawn) == 1 else ("", None)
    except Exception:  # a kernel that takes nothing but what the model gave it stays opaque
        return "", None


class _Single:
    """The function as one of its first input, in float32."""

    def __init__(self, function: Function, others: Sequence[Tensor]) -> None:
        self._function, self._others = function, others

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._function(x.clone(), *self._others)
        return out.float()


def _one_input(f: _Single, x: Tensor, learned: bool) -> tuple[str, float | None]:
    y = f(x)
    if y.shape != x.shape or x.dim() < 2 or x.shape[-1] < 4 or not y.norm() > 0:
        return "", None
    tolerance = _LOOSE.get(x.dtype, _HALF)
    if _differ(f(-x), y) < 0.1 or _differ(f(x.roll(1, -1)), y) < 0.1:
        return "", None
    if all(_differ(f(x * factor), y) < tolerance for factor in _FACTORS):
        return _kind_of_norm(f, x, y, tolerance), None
    return _saturating(f, x, tolerance) if learned else ("", None)


def _kind_of_norm(f: _Single, x: Tensor, y: Tensor, tolerance: float) -> str:
    if not _nudge(f, x)[..., 1:].max() > 0:  # each element by itself, as a sign
        return ""
    louder = x.clone()
    louder.select(-2, 0).mul_(_FACTORS[0])
    if x.shape[-2] > 1 and _differ(f(louder), y) > tolerance:
        return "groupnorm"
    if _differ(f(x + 3), y) < tolerance:
        return "layernorm"
    lengths = y.norm(dim=-1)
    return "l2" if bool(((lengths - 1).abs() < tolerance).all()) else "rmsnorm"


def _saturating(f: _Single, x: Tensor, tolerance: float) -> tuple[str, float | None]:
    """Bounded, and each element by itself; tanh and erf differ in how they approach their bound."""
    if _differ(f(x * 2 * _LARGE), f(x * _LARGE)) > tolerance:
        return "", None
    moved = _nudge(f, x)
    if moved[..., 1:].max() > 1e-5 or not moved[..., 0].max() > 0:
        return "", None
    low, half, high = (_reaches(f, x, level) for level in _LEVELS)
    kind = "dyt" if (high - half) / (half - low) > _TANH_OR_ERF else "derf"
    inverse = math.atanh if kind == "dyt" else _inverse_erf
    return kind, (inverse(_LEVELS[2]) - inverse(_LEVELS[0])) / (high - low)


def _nudge(f: _Single, x: Tensor) -> Tensor:
    """How far the output moves with the first channel."""
    nudged = x.clone()
    nudged[..., 0] += 1
    return (f(nudged) - f(x)).abs()


def _reaches(f: _Single, x: Tensor, level: float) -> float:
    """The input at which the first channel is at a level between its middle (0) and its bound (1)."""

    def at(value: float) -> float:
        return float(f(torch.full_like(x, value)).flatten()[0])

    top, bottom = at(_LARGE), at(-_LARGE)
    middle, height = (top + bottom) / 2, (top - bottom) / 2
    low, high = -_LARGE, _LARGE
    for _ in range(_STEPS):
        guess = (low + high) / 2
        low, high = (low, guess) if (at(guess) - middle) / height > level else (guess, high)
    return high


def _inverse_erf(level: float) -> float:
    return float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))


def _attends(f: Function, inputs: Sequence[Tensor]) -> bool:
    """Linear in values; without queries the keys do not matter, with them they do."""
    query, key, value, *rest = inputs
    if query.dim() < 3 or query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        return False

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = f(q, k, v, *rest)
        first: Tensor = out[0] if isinstance(out, tuple) else out
        return first.float()

    y, other = run(query, key, value), key.roll(1, -1)
    tolerance = _LOOSE.get(query.dtype, _HALF)
    nothing = torch.zeros_like(query)
    linear = _differ(run(query, key, 2 * value), 2 * y) < tolerance
    keys_alone = _differ(run(nothing, other, value), run(nothing, key, value)) < tolerance
    return linear and keys_alone and _differ(run(query, other, value), y) > tolerance


def _differ(one: Tensor, other: Tensor) -> float:
    """Relative distance; infinite where something is not a number."""
    distance = float((one - other).norm() / other.norm().clamp_min(1e-12))
    return distance if math.isfinite(distance) else math.inf
