"""Parameters, their gradients, updates and optimizer state, read between backward and the next forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stabilitylens.hooks.partial import PartialGradients
from stabilitylens.hooks.shares import local, part_of, summand_of
from stabilitylens.hooks.slots import Slots
from stabilitylens.kernels import second_moments, sum_of_squares

#: elements of a parameter worked on at a time, so that temporaries stay small
CHUNK = 1 << 20


def values_of(grad: Tensor) -> Tensor:
    """A gradient's entries; of a sparse one those that it has, each once."""
    return grad.coalesce().values() if grad.is_sparse else grad


def is_adam(group: dict[str, Any]) -> bool:
    """Whether a parameter group has Adam's two decay rates and its one epsilon."""
    betas = group.get("betas")
    return isinstance(betas, (tuple, list)) and len(betas) == 2 and isinstance(group.get("eps"), (float, Tensor))


def adam_row(grad: Tensor, second_moment: Tensor, step: Tensor | float, beta2: float, eps: float) -> Tensor:
    r"""The fields of ``AdamMoments``: count, $\sum g^2/\max(\hat v, \varepsilon^2)$, entries with $\sqrt{\hat v} < \varepsilon$.

    $\hat v = v / (1 - \beta_2^t)$ with the moment that includes this step's gradient, as in StableAdamW
    (https://arxiv.org/abs/2304.13013).
    """
    correction = 1 - beta2**step
    ratio = grad.new_zeros((), dtype=torch.float64)
    below = torch.zeros_like(ratio)
    for g, v in zip(torch.split(grad.reshape(-1), CHUNK), torch.split(second_moment.reshape(-1), CHUNK), strict=True):
        corrected = v.float() / correction
        ratio += (g.float().square() / corrected.clamp(min=eps * eps)).double().sum()
        below += (corrected < eps * eps).sum()
    return torch.stack((torch.full_like(ratio, grad.numel()), ratio, below))


class ParameterTaps:
    """Reads what belongs to the trainable parameters of a model.

    Args:
        parameters: the trainable ones, each once, by canonical name.
        slots: where rows go; keys are indices into ``parameters``.
        wanted: the taps that are read.

    Attributes:
        counted: indices of those that this process counts, so that the processes together count each element once;
            None for all.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], slots: Slots, wanted: frozenset[str]) -> None:
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self._index = {id(p): i for i, p in enumerate(self.parameters)}
        self._foreign: set[int] = set()
        self._slots, self._wanted = slots, wanted
        self._before: dict[int, Tensor] = {}
        self.with_gradient: set[int] = set()
        self.skipped_state: set[str] = set()
        self.counted: set[int] | None = None
        self.partial = PartialGradients()

    def adopt(self, optimizers: Iterable[Optimizer], trainable: Callable[[], dict[str, nn.Parameter]]) -> None:
        """Take in parameters of the model that optimizers own and that have become trainable since."""
        known = self._index.keys() | self._foreign
        strangers = [
            p for o in optimizers for g in o.param_groups for p in g["params"] if id(p) not in known and p.requires_grad
        ]
        if not strangers:
            return
        for name, parameter in trainable().items():
            if id(parameter) not in self._index:
                self._index[id(parameter)] = len(self.parameters)
                self.names.append(name)
                self.parameters.append(parameter)
        self._foreign |= {id(p) for p in strangers} - self._index.keys()

    def owned(self, optimizer: Optimizer) -> list[int]:
        """Indices of the parameters that an optimizer updates."""
        return [self._index[id(p)] for g in optimizer.param_groups for p in g["params"] if id(p) in self._index]

    def learning_rates(self, optimizers: Iterable[Optimizer]) -> dict[int, float]:
        """Learning rate of each parameter."""
        groups = (g for o in optimizers for g in o.param_groups)
        return {self._index[id(p)]: float(g["lr"]) for g in groups for p in g["params"] if id(p) in self._index}

    @torch.no_grad()
    def gradients(self, tap: str, scale: Tensor | float | None = None, only: Iterable[int] | None = None) -> None:
        """Rows of all gradients that there are, in place of earlier ones; a gradient that is None has none.

        Args:
            tap: ``grad`` before clipping, ``grad_clipped`` after it.
            scale: what multiplies the gradients, divided out of the rows; None where nothing does.
            only: indices to look at, None for all.
        """
        for i in range(len(self.parameters)) if only is None else only:
            whole = self.parameters[i].grad
            grad = None if whole is None else part_of(whole, self.parameters[i])
            if grad is None:
                summand = None if whole is None else summand_of(whole, self.parameters[i])
                if summand is not None:
                    self.partial.note(tap, i, summand, scale)
                continue
            row = second_moments(values_of(grad))
            row[0] = grad.numel()
            if scale is not None:
                row[3] /= scale * scale
                row[4] /= scale
            self._slots.put(tap, i, row)
            self.with_gradient.add(i)

    @torch.no_grad()
    def gradient_norm(self, scale: Tensor | float | None = None, only: Iterable[int] | None = None) -> Tensor | None:
        """L2 norm of all gradients that this process counts, fp64, on their device; None where it can't tell."""
        chosen = range(len(self.parameters)) if only is None else only
        mine = [self.parameters[i] for i in chosen if self.counted is None or i in self.counted]
        parts = [part_of(p.grad, p) for p in mine if p.grad is not None]
        grads = [values_of(g) for g in parts if g is not None]
        if not grads or len(grads) < len(parts):
            return None if self.counted is None or not mine or parts else torch.zeros((), dtype=torch.float64)
        total = torch.stack([sum_of_squares(g).to(grads[0].device) for g in grads]).sum()
        return total.sqrt() if scale is None else total.sqrt() / scale

    @torch.no_grad()
    def before_update(self, optimizer: Optimizer) -> None:
        """Keep a copy of the parameters until :meth:`after_update`, when activations are long freed."""
        for i in self.owned(optimizer):
            parameter = local(self.parameters[i].detach())
            if "param" in self._wanted:
                self._slots.add("param", i, second_moments(parameter))
            if "update" in self._wanted:
                self._before[i] = parameter.clone()

    @torch.no_grad()
    def after_update(self, optimizer: Optimizer) -> None:
        """Rows of the updates, and of Adam's second moment where there is one of the parameter's shape."""
        for i in self.owned(optimizer):
            before = self._before.pop(i, None)
            if before is not None:
                parameter = local(self.parameters[i].detach())
                self._slots.add("update", i, second_moments(torch.sub(parameter, before, out=before)))
        for group in optimizer.param_groups:
            if is_adam(group) and "adam" in self._wanted:
                self._adam(optimizer, group)

    def _adam(self, optimizer: Optimizer, group: dict[str, Any]) -> None:
        beta2, eps = group["betas"][1], group["eps"]
        for parameter in group["params"]:
            i = self._index.get(id(parameter))
            state = optimizer.state.get(parameter, {})
            moment, step, grad = state.get("exp_avg_sq"), state.get("step"), parameter.grad
            if i is None or grad is None or moment is None or step is None:
                continue
            if grad.is_sparse:
                self.skipped_state.add(self.names[i])
                continue
            if not isinstance(moment, Tensor) or not moment.is_floating_point() or moment.shape != grad.shape:
                self.skipped_state.add(self.names[i])
                continue
            part = part_of(grad, parameter)
            if part is not None:
                self._slots.put("adam", i, adam_row(part, local(moment), step, beta2, eps))
            elif summand_of(grad, parameter) is not None:
                self.partial.note_moment(i, local(moment), step, beta2, eps)
