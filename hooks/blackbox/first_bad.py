"""The first module that goes wrong: from finite to not finite, or far from what it did in the steps before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import torch
from torch import nn

from stabilitylens.hooks.blackbox.probe import Call
from stabilitylens.hooks.blackbox.result import FirstBad, Frame, Values
from stabilitylens.hooks.blackbox.sigma import sigma_above
from stabilitylens.hooks.blackbox.snapshot import named_tensors
from stabilitylens.hooks.shares import local

#: so many frames before the first bad one are shown
FRAMES = 6
#: sigma in the logarithm that a module strays from what it did in the steps before. *Heuristic*: with the floor below, a
#: factor of 2.2 where those steps were all alike.
OUTLYING = 8.0
#: least noise of a logarithm that is assumed. *Heuristic*: batches differ by a tenth.
FLOOR = 0.1


def bad_weights(step: int, model: nn.Module) -> FirstBad | None:
    """The first parameter or buffer that is not finite before a step."""
    for name, tensor in named_tensors(model).items():
        if _is_bad(tensor):
            module = name.rpartition(".")[0]
            text = f"{name} is not finite before step {step} begins: the step before has damaged it"
            return FirstBad("weights", step, module, "forward", None, (), text)
    return None


def _is_bad(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return False
    x = local(tensor.detach())
    masks = not isinstance(tensor, nn.Parameter)  # a buffer may hold the minus infinity of a mask
    return bool(torch.isnan(x).any()) or not masks and bool(torch.isinf(x).any())


def nonfinite(step: int, calls: Sequence[Call]) -> FirstBad | None:
    """The first module that makes something not finite of what is finite: of the forward, else of the backward."""
    frames = [call.forward(step) for call in calls]
    for i, frame in enumerate(frames):
        if _good(frame.input) and not _good(frame.output):
            return _named("nonfinite", frame, frames[:i], "makes", "not finite of inputs that are")
    begun = next((i for i, f in enumerate(frames) if not _good(f.output)), None)
    if begun is not None:  # its input was not finite, and no module that ran made it so
        return _named("nonfinite", frames[begun], frames[:begun], "is given inputs that are not finite, and gives", "not finite")
    return _backward(step, calls)


def _backward(step: int, calls: Sequence[Call]) -> FirstBad | None:
    order = sorted((c for c in calls if c.first >= 0 or c.gradient_out), key=lambda c: max(c.first, 0))
    frames = {id(c): c.backward(step) for c in order}
    made = [c for c in order if c.bad[0] >= 0 and c.bad_arrived < 0]
    if made:
        first = min(made, key=lambda c: c.bad[0])
        same = [c for c in made if c.bad[1] == first.bad[1]]
        worst = max(same, key=lambda c: (c.module.count("."), len(c.module)))
        before = [frames[id(c)] for c in order if 0 <= c.first < worst.bad[0] and c is not worst]
        text = f"not finite of a gradient that is, for {worst.parameter}" if worst.parameter else "not finite of a gradient that is"
        return _named("nonfinite", frames[id(worst)], before, "makes a gradient", text)
    arrived = [c for c in order if c.bad_arrived >= 0]
    if not arrived:
        return None
    first = min(arrived, key=lambda c: c.bad_arrived)
    before = [frames[id(c)] for c in order if 0 <= c.first < first.bad_arrived and c is not first]
    return _named("nonfinite", frames[id(first)], before, "is given a gradient by what follows it that is", "not finite")


def outlying(step: int, calls: Sequence[Call], earlier: Sequence[Sequence[Call]]) -> FirstBad | None:
    """The first module whose output, or whose gradient, is far above what it was in the steps before."""
    if not earlier:
        return None
    past = [{(c.module, c.call): c for c in some} for some in earlier]
    forward = [(c.forward(step), [p[c.module, c.call].forward(0) for p in past if (c.module, c.call) in p]) for c in calls]
    backward = sorted((c for c in calls if c.first >= 0), key=lambda c: c.first)
    back = [(c.backward(step), [p[c.module, c.call].backward(0) for p in past if (c.module, c.call) in p]) for c in backward]
    for some in (forward, back):
        for i, (frame, before) in enumerate(some):
            own = frame.output if frame.direction == "forward" else frame.input
            usual = [v for f in before if (v := f.output if f.direction == "forward" else f.input) is not None]
            if own is not None and usual and strays(own, usual) > OUTLYING:
                times = own.absmax / (median(v.absmax for v in usual) or math.nan)
                what = "an output" if frame.direction == "forward" else "a gradient at its output"
                return _named("outlying", frame, [f for f, _ in some[:i]], f"is the first with {what}", f"{times:.3g} times the usual")
    return None


def strays(own: Values, usual: Sequence[Values]) -> float:
    """How many sigma above the usual, in the logarithm of the RMS or of the largest, whichever strays more."""
    both = ((own.rms, [v.rms for v in usual]), (own.absmax, [v.absmax for v in usual]))
    return max(0.0, *(s for value, past in both if not math.isnan(s := sigma_above(value, past, FLOOR))))


def _good(found: Values | None) -> bool:
    return found is None or found.finite


def _named(what: str, frame: Frame, before: Sequence[Frame], verb: str, rest: str) -> FirstBad:
    name = f"{frame.module or 'the model itself'} ({frame.kind})"
    numbers = "; ".join(f"{side} {words(v)}" for side, v in (("input", frame.input), ("output", frame.output)) if v is not None)
    text = f"step {frame.step}, {frame.direction}: {name} {verb} {rest}: {numbers}"
    return FirstBad(what, frame.step, frame.module, frame.direction, frame, tuple(before[-FRAMES:]), text)  # type: ignore[arg-type]


def words(found: Values) -> str:
    """The numbers in words."""
    bad = " and ".join(f"{n} {word}" for n, word in ((found.inf, "inf"), (found.nan, "NaN")) if n)
    return f"absmax {found.absmax:.4g}, RMS {found.rms:.4g}" + (f", {bad} of {found.count}" if bad else "")
