"""Parameters, their gradients, updates and optimizer state, read between backward and the next forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stabilitylens.hooks.partial import PartialGradients
from stabilitylens.hooks.selection import RowOf
from stabilitylens.hooks.shares import local, part_of, summand_of
from stabilitylens.hooks.slots import Slots
from stabilitylens.kernels import adam_ratio, norm_moments, norm_row, sums_of_squares


def values_of(grad: Tensor) -> Tensor:
    """A gradient's entries; of a sparse one those that it has, each once."""
    return grad.coalesce().values() if grad.is_sparse else grad


def is_adam(group: dict[str, Any]) -> bool:
    """Whether a parameter group has Adam's two decay rates and its one epsilon."""
    betas = group.get("betas")
    return isinstance(betas, (tuple, list)) and len(betas) == 2 and isinstance(group.get("eps"), (float, Tensor))


class ParameterTaps:
    """Reads what belongs to the trainable parameters of a model.

    Args:
        parameters: the trainable ones, each once, by canonical name.
        slots: where rows go; keys are indices into ``parameters``.
        wanted: the taps that are read.
        rows: what makes a row of each tap of ``Moments``.

    Attributes:
        counted: indices of those that this process counts, so that the processes together count each element once;
            None for all.
        fresh: the parameters that were taken in since this was last emptied, and whether in place of another.
        held_norm: of the gradients that were read last and that this process holds, counted here or not; None where all are.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], slots: Slots, wanted: frozenset[str], rows: Mapping[str, RowOf]) -> None:
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self._index = {id(p): i for i, p in enumerate(self.parameters)}
        self._foreign: set[int] = set()
        self.fresh: dict[str, bool] = {}
        self._slots, self._wanted, self._row_of = slots, wanted, rows
        self._before: dict[int, Tensor] = {}
        self.with_gradient: set[int] = set()
        self.skipped_state: set[str] = set()
        self.counted: set[int] | None = None
        self.held_norm: Tensor | None = None
        self.partial = PartialGradients()
        self._versions: list[int] = []
        self.moved()

    def adopt(self, optimizers: Iterable[Optimizer], trainable: Callable[[], dict[str, nn.Parameter]]) -> bool:
        """Take in parameters of the model that optimizers own and that are new since; whether there were any."""
        known = self._index.keys() | self._foreign
        strangers = [
            p for o in optimizers for g in o.param_groups for p in g["params"] if id(p) not in known and p.requires_grad
        ]
        found = bool(strangers) and self.take_in(trainable())
        self._foreign |= {id(p) for p in strangers} - self._index.keys()
        return found

    def take_in(self, trainable: Mapping[str, nn.Parameter]) -> bool:
        """Take in the parameters that the model has now, in place of those whose names they bear; whether there were any."""
        fresh = [n for n, p in trainable.items() if id(p) not in self._index]
        place = {name: i for i, name in enumerate(self.names)}
        self.fresh |= {name: name in place for name in fresh}
        for name in fresh:
            i = place.get(name, len(self.parameters))
            if i == len(self.parameters):
                self.names.append(name)
                self.parameters.append(trainable[name])
            else:
                self._index.pop(id(self.parameters[i]), None)
                self._before.pop(i, None)
                self.parameters[i] = trainable[name]
            self._index[id(trainable[name])] = i
        return bool(fresh)

    @property
    def idle(self) -> bool:
        """Whether there are parameters, and none has a gradient."""
        return bool(self.parameters) and not self.with_gradient and all(p.grad is None for p in self.parameters)

    @property
    def ends(self) -> dict[str, nn.Parameter]:
        """The first and the last of them, which stand for all."""
        return {self.names[i]: self.parameters[i] for i in (0, -1)} if self.parameters else {}

    def moved(self) -> bool:
        """Whether parameters were written to since this was last asked: the first or the last, which stand for all."""
        before, self._versions = self._versions, [p._version for p in self.ends.values()]
        return before != self._versions

    def owned(self, optimizer: Optimizer) -> list[int]:
        """Indices of the parameters that an optimizer updates."""
        return [self._index[id(p)] for g in optimizer.param_groups for p in g["params"] if id(p) in self._index]

    def learning_rates(self, optimizers: Iterable[Optimizer]) -> dict[int, float]:
        """Learning rate of each parameter."""
        groups = (g for o in optimizers for g in o.param_groups)
        return {self._index[id(p)]: float(g["lr"]) for g in groups for p in g["params"] if id(p) in self._index}

    @torch.no_grad()
    def gradients(
        self, tap: str, scale: Tensor | float | None = None, only: Iterable[int] | None = None, *, keep: bool = True
    ) -> Tensor | None:
        """Read all gradients that there are, in place of earlier readings; a gradient that is None has none.

        Args:
            tap: ``grad`` before clipping, ``grad_clipped`` after it.
            scale: what multiplies the gradients, divided out; None where nothing does.
            only: indices to look at, None for all.
            keep: whether their rows are wanted, beside the norm.

        Returns:
            L2 norm of all that this process counts, fp64, on their device; None where it can't tell.
        """
        seen: dict[int, Tensor] = {}
        unknown = []
        for i in range(len(self.parameters)) if only is None else only:
            parameter = self.parameters[i]
            if parameter.grad is None:
                continue
            part = part_of(parameter.grad, parameter)
            if part is not None:
                seen[i] = part
                continue
            unknown.append(i)
            summand = summand_of(parameter.grad, parameter)
            if summand is not None and keep:
                self.partial.note(tap, i, summand, scale)
        sums = self._rows(tap, seen, scale) if keep else sums_of_squares([values_of(g) for g in seen.values()])
        return self._norm(seen, sums, unknown, only, scale)

    def _rows(self, tap: str, seen: dict[int, Tensor], scale: Tensor | float | None) -> Tensor:
        """Keep a row for each gradient; their sums of squares, before the scale is divided out."""
        rows = self._moments(tap, [values_of(g) for g in seen.values()])
        sums = rows[:, 3].clone()
        if any(g.is_sparse for g in seen.values()):
            rows[:, 0] = rows.new_tensor([g.numel() for g in seen.values()])
        if scale is not None:
            rows[:, 1:3] /= scale
            rows[:, 3] /= scale * scale
            rows[:, 4] /= scale
        self._slots.put_each(tap, seen, rows)
        self.with_gradient |= seen.keys()
        return sums

    def _moments(self, tap: str, tensors: list[Tensor]) -> Tensor:
        row_of = self._row_of[tap]
        return norm_moments(tensors) if row_of is norm_row or not tensors else torch.stack([row_of(x) for x in tensors])

    def _norm(
        self, seen: dict[int, Tensor], sums: Tensor, unknown: list[int], only: Iterable[int] | None, scale: Tensor | float | None
    ) -> Tensor | None:
        counted = self.counted
        self.held_norm = None
        if counted is not None:
            self.held_norm = sums.sum().sqrt() if scale is None else sums.sum().sqrt() / scale
            sums = sums[[k for k, i in enumerate(seen) if i in counted]]
            unknown = [i for i in unknown if i in counted]
        if unknown or not len(sums):
            mine = counted is not None and any(i in counted for i in (range(len(self.parameters)) if only is None else only))
            return torch.zeros((), dtype=torch.float64) if mine and not unknown else None
        total = sums.sum().sqrt()
        return total if scale is None else total / scale

    @torch.no_grad()
    def before_update(self, optimizer: Optimizer) -> None:
        """Keep a copy of the parameters until :meth:`after_update`, when activations are long freed."""
        mine = {i: local(self.parameters[i].detach()) for i in self.owned(optimizer)}
        if "param" in self._wanted:
            self._slots.put_each("param", mine, self._moments("param", list(mine.values())))
        if "update" in self._wanted:
            self._before |= {i: parameter.clone() for i, parameter in mine.items()}

    @torch.no_grad()
    def after_update(self, optimizer: Optimizer) -> None:
        """Rows of the updates, and of Adam's second moment where there is one of the parameter's shape."""
        updates = {}
        for i in self.owned(optimizer):
            before = self._before.pop(i, None)
            if before is not None:
                updates[i] = torch.sub(local(self.parameters[i].detach()), before, out=before)
        if updates:
            self._slots.put_each("update", updates, self._moments("update", list(updates.values())))
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
                self._slots.put("adam", i, adam_ratio(part, local(moment), step, beta2, eps))
            elif summand_of(grad, parameter) is not None:
                self.partial.note_moment(i, local(moment), step, beta2, eps)
