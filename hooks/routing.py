"""Who the router of a mixture of experts chose, and how undecided it was.

That a selection routes tokens is told by the forward: the largest entries are chosen along an axis that is as long
as there are experts, within the module that holds them, and what was chosen is then used to pick something out.
Experts that share one matrix are told apart where it is viewed as one matrix for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.experts import Experts, find_experts, gradient_rows
from stabilitylens.hooks.functions import Function, named
from stabilitylens.hooks.opaque import observe
from stabilitylens.hooks.origins import JOINS, LAYOUTS, Origin, OriginWatch, Overwritten
from stabilitylens.hooks.provenance import Provenance
from stabilitylens.hooks.slots import Slots

SELECTIONS = named("topk", "argmax", "max")
COMPARISONS = named("eq", "__eq__", "ne", "__ne__")
#: functions that gate each expert by itself
GATES = frozenset({"sigmoid", "sigmoid_"})


@dataclass(eq=False)
class Routing:
    """One selection: among how many, whether its outcome was used, rows for the slots."""

    size: int
    home: str
    used: bool = False
    rows: dict[str, Tensor] = field(default_factory=dict)


class RouterWatch:
    """Finds the routers among the torch functions of a forward.

    Args:
        modules: canonical name of each module.
        blocks: names of the blocks.
        origins: knows the logits that a selection goes back to.
        current: name of the module that is running.
    """

    def __init__(
        self, modules: Mapping[nn.Module, str], blocks: Iterable[str], origins: OriginWatch, current: Callable[[], str]
    ) -> None:
        self._origins, self._current = origins, current
        self.find(modules, blocks)
        self._routings: list[Routing] = []
        self._chosen: Provenance[tuple[Routing, ...]] = Provenance()
        self._packed: dict[str, dict[int, nn.Parameter]] = {}
        self.routed: dict[Any, Experts] = {}

    def find(self, modules: Mapping[nn.Module, str], blocks: Iterable[str]) -> None:
        """Find the experts of a model."""
        self._blocks = frozenset(blocks)
        self._homes = find_experts(modules, self._blocks)

    def after(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Any torch function has run."""
        if func in SELECTIONS:
            self._select(args, kwargs, out)
        elif self._routings:
            self._use(func, args, kwargs, out)
            if func in LAYOUTS and isinstance(args[0], nn.Parameter) and isinstance(out, Tensor):
                self._unpack(args[0], out)

    def _select(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        index = out if isinstance(out, Tensor) else out[1] if isinstance(out, (tuple, list)) and len(out) == 2 else None
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(index, Tensor) or index.dtype is not torch.int64 or not isinstance(scores, Tensor) or scores.dim() < 2:
            return
        size, origin = scores.shape[-1], self._origins.get(scores)
        home = self._home(size, origin)
        if home is None or index.numel() % max(1, scores.numel() // size):
            return
        routing = Routing(size, home)

        def count(scores: Tensor, index: Tensor, *_: Tensor) -> None:
            routing.rows = routing_rows(scores, index, origin)

        observe(count, scores, index, *(origin.roots if origin else ()))
        self._routings.append(routing)
        self._chosen.set(index, (routing,))

    def _home(self, size: int, origin: Origin | None) -> str | None:
        """The nearest module around that holds so many experts, or that may hold them in one matrix."""
        name, around = self._current(), self._above(self._current())
        exact = next((n for n in around if any(e.count == size for e in self._homes.get(n, ()))), None)
        if exact is not None or not around or any(n in self._homes for n in around):
            return exact
        made = origin is not None and any(root.shape[-1] == size for root in origin.roots)
        return name.rpartition(".")[0] if made and name not in self._blocks else None

    def _above(self, name: str) -> list[str]:
        """A module and what is around it, up to its block; nothing outside the blocks."""
        names = [name]
        while names[-1] not in self._blocks:
            if not names[-1]:
                return []
            names.append(names[-1].rpartition(".")[0])
        return names

    def _use(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        read = [r for r in map(self._chosen.get, _tensors((*args, *kwargs.values()))) if r is not None]
        if not read:
            return
        routings = tuple(dict.fromkeys(r for one in read for r in one))
        if func in LAYOUTS and self._chosen.get(args[0]) is not None or func in JOINS:
            for part in out if isinstance(out, (tuple, list)) else (out,):
                self._chosen.set(part, routings)
        elif func not in COMPARISONS or len(read) == 1:
            for routing in routings:
                routing.used = True

    def _unpack(self, parameter: nn.Parameter, view: Tensor) -> None:
        waiting = [r for r in self._routings if r.home not in self._homes]
        if waiting and parameter.dim() == 2 and view.dim() == 3 and view.shape[0] == waiting[-1].size:
            if self._current().startswith(waiting[-1].home):
                self._packed.setdefault(waiting[-1].home, {})[id(parameter)] = parameter

    def _experts(self, routing: Routing) -> Experts | None:
        for experts in self._homes.get(routing.home, ()):
            if experts.count == routing.size:
                return experts
        packed = self._packed.get(routing.home, {}).values()
        return Experts(routing.size, fused=tuple((p, routing.size) for p in packed)) if packed else None

    def take(self, layer: Any) -> Iterator[dict[str, Tensor]]:
        """The rows of the selections since the last call, by tap: those whose outcome was used."""
        routings, self._routings = self._routings, []
        self._chosen.clear()
        counted: set[str] = set()
        for routing in routings:
            experts = self._experts(routing) if routing.used else None
            if experts is None:
                continue
            self.routed[layer] = experts
            if routing.home in counted:  # a router that chooses one expert after the other sees its tokens once
                routing.rows["expert"][:, 0] = 0
                routing.rows.pop("router", None)
            counted.add(routing.home)
            yield routing.rows

    def read_gradients(self, slots: Slots, scale: Tensor | float | None) -> None:
        """Rows of the gradients of all experts that tokens were routed among; ``scale`` is divided out."""
        for layer, experts in self.routed.items():
            rows = gradient_rows(experts, scale)
            if rows is not None:
                slots.put("expert_grad", layer, rows)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (x for x in value if isinstance(x, Tensor))


def routing_rows(scores: Tensor, index: Tensor, origin: Origin | None) -> dict[str, Tensor]:
    """Rows of the taps ``expert``, of shape (expert, field), and ``router``.

    Args:
        scores: among which the largest were chosen along the last axis.
        index: those that were.
        origin: of the scores.
    """
    size = scores.shape[-1]
    tokens = scores.numel() // size
    chosen = torch.zeros(size, dtype=torch.float64, device=scores.device)
    chosen.scatter_add_(0, index.reshape(-1), torch.ones(index.numel(), dtype=torch.float64, device=scores.device))
    rows = {"expert": torch.stack((torch.full_like(chosen, tokens), chosen), -1)}
    logits = _logits(scores, origin)
    if logits is not None:
        p = _distribution(logits, origin)
        rows["router"] = torch.stack((chosen.new_tensor(float(tokens)), torch.special.entr(p).sum().double()))
    return rows


def _logits(scores: Tensor, origin: Origin | None) -> Tensor | None:
    """What the router's projection made of each token, one row a token."""
    if origin is None:
        return None
    try:
        made = origin.values()
    except (Overwritten, RuntimeError, IndexError):
        return None
    return made.reshape(-1, made.shape[-1]).float() if made.shape[-1] == scores.shape[-1] else None


def _distribution(logits: Tensor, origin: Origin | None) -> Tensor:
    if origin is not None and origin.through & GATES:
        gate = logits.sigmoid()
        return gate / gate.sum(-1, keepdim=True)
    return logits.softmax(-1)
