"""Watches every module of a model through a step, forward and backward, and keeps a few numbers of each call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.blackbox.result import Frame, Values
from stabilitylens.hooks.modules import may_run_fused
from stabilitylens.hooks.names import canonical_names
from stabilitylens.hooks.shares import local


@dataclass
class Call:
    """One call of a module, its numbers still to come together.

    Attributes:
        done, first: when its forward ended, and when the first gradient reached its outputs; -1 for not yet.
        bad: when the first gradient that is not finite left it, and the identity of the tensor that it is of.
    """

    module: str
    kind: str
    call: int
    input: list[Tensor | Values] = field(default_factory=list)
    output: list[Tensor | Values] = field(default_factory=list)
    gradient_in: list[Values] = field(default_factory=list)
    gradient_out: list[Values] = field(default_factory=list)
    done: int = -1
    first: int = -1
    bad: tuple[int, int] = (-1, 0)
    bad_arrived: int = -1
    parameter: str = ""

    def forward(self, step: int) -> Frame:
        """Its frame of the forward."""
        return Frame(step, self.module, self.kind, self.call, "forward", together(self.input), together(self.output))

    def backward(self, step: int) -> Frame:
        """Its frame of the backward."""
        into, out = together(self.gradient_in), together(self.gradient_out)
        return Frame(step, self.module, self.kind, self.call, "backward", into, out, self.parameter)


class Probe:
    """Watches between ``with`` and its end; nothing that the model computes is changed.

    Attributes:
        calls: every call that has ended, in the order in which they ended.
    """

    def __init__(self, model: nn.Module) -> None:
        names = canonical_names(model)
        fused = [m for m in model.modules() if may_run_fused(m)]  # a hook would switch the fused kernel off
        hidden = {inner for m in fused for inner in m.modules()}
        self._modules = {m: names[path] for path, m in model.named_modules() if m not in hidden}
        owners = [(names[f"{path}.{n}" if path else n], m, p) for path, m in model.named_modules() for n, p in m.named_parameters(recurse=False)]
        self._parameters = [(name, m, p) for name, m, p in owners if p.requires_grad and not isinstance(p, nn.parameter.UninitializedParameter)]
        self.calls: list[Call] = []
        self._open: list[tuple[nn.Module, Call]] = []
        self._count: Counter[str] = Counter()
        self._last: dict[nn.Module, Call] = {}
        self._clock = 0

    def __enter__(self) -> Probe:
        self._handles: list[Any] = []
        for module in self._modules:
            self._handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        for name, module, parameter in self._parameters:
            hook = parameter.register_post_accumulate_grad_hook(lambda p, n=name, m=module: self._accumulated(n, m, p))
            self._handles.append(hook)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _now(self) -> int:
        self._clock += 1
        return self._clock

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch._C._current_graph_task_id() != -1:  # a checkpointed forward is run a second time
            return
        name = self._modules[module]
        call = Call(name, type(module).__name__, self._count[name])
        self._count[name] += 1
        self._open.append((module, call))
        for tensor in floating((args, kwargs)):
            call.input.append(values(tensor))
            if tensor.requires_grad:
                tensor.register_hook(lambda g, i=id(tensor): self._left(call, g, i))

    def _leave(self, module: nn.Module, _args: Any, out: Any) -> None:
        if torch._C._current_graph_task_id() != -1 or not any(m is module for m, _ in self._open):
            return
        while self._open[-1][0] is not module:
            self._open.pop()
        call = self._open.pop()[1]
        call.done = self._now()
        self.calls.append(call)
        self._last[module] = call
        for tensor in floating(out):
            call.output.append(values(tensor))
            if tensor.requires_grad:
                tensor.register_hook(lambda g: self._arrived(call, g))

    # the backward

    def _arrived(self, call: Call, gradient: Tensor) -> None:
        now, found = self._now(), values(gradient)
        call.first = now if call.first < 0 else call.first
        call.bad_arrived = now if call.bad_arrived < 0 and not found.finite else call.bad_arrived
        call.gradient_in.append(found)

    def _left(self, call: Call, gradient: Tensor, tensor: int) -> None:
        self._note(call, values(gradient), tensor)

    def _accumulated(self, name: str, module: nn.Module, parameter: Tensor) -> None:
        call = self._last.get(module)
        if call is not None and parameter.grad is not None:
            found = values(parameter.grad)
            if not found.finite and not call.parameter:
                call.parameter = name
            self._note(call, found, id(parameter))

    def _note(self, call: Call, found: Values, tensor: int) -> None:
        now = self._now()
        if not found.finite and call.bad[0] < 0:
            call.bad = (now, tensor)
        call.gradient_out.append(found)


def floating(value: Any) -> Iterable[Tensor]:
    """The floating-point tensors in arguments or a result."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and not value.is_nested and value.numel():
            yield value
    elif isinstance(value, Mapping):
        yield from floating(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from floating(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from floating([getattr(value, f.name) for f in fields(value)])


@torch.no_grad()
def values(tensor: Tensor) -> Values:
    """A few numbers of a tensor, of this process's part where it is spread over several."""
    x = local(tensor.detach())
    wide = x.double() if x.dtype == torch.float64 else x.float()
    nan, infinite = wide.isnan(), wide.isinf()
    finite = torch.where(nan | infinite, 0, wide)
    low = int((infinite & (wide < 0)).sum())
    masks = low > 0 and float(finite.amax()) <= 0 and not bool(nan.any()) and not bool((infinite & (wide > 0)).any())
    inf = 0 if masks else int(infinite.sum())
    largest = float(finite.abs().amax())
    scaled = finite / (largest or 1.0)
    return Values(x.numel(), largest, largest * float(scaled.square().mean().sqrt()), int(nan.sum()), inf)


def together(parts: Iterable[Any]) -> Values | None:
    """The numbers of several tensors as one; None of none."""
    several: list[Values] = list(parts)
    if not several:
        return None
    count = sum(v.count for v in several)
    largest = max(v.absmax for v in several)
    square = sum(v.count * (v.rms / (largest or 1.0)) ** 2 for v in several) / count
    return Values(count, largest, largest * square**0.5, sum(v.nan for v in several), sum(v.inf for v in several))
