"""A forward as autograd saw it: a second way to the same graph, to check the first by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from graphlib import TopologicalSorter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.utils._pytree import tree_leaves, tree_map

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.graph import Graph, Node
from stabilitylens.hooks.anatomy.stack import ModuleStack

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LARGEST = 1 << 20  # elements of all inputs together; a forward that keeps its activations is cheap below
_RENAMED = {"copy_slices": "copy", "copy_backwards": "copy"}


def walk(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *modes: Any) -> Graph | None:
    """Run the model with gradients and return what autograd recorded, as :func:`~.trace.trace` would.

    Args:
        model: the model; its state is the caller's to protect.
        args: positional arguments of its forward.
        kwargs: keyword arguments of its forward.
        modes: further context managers to run under.

    Returns:
        The graph; None where autograd does not see all of the model: frozen or sharded parameters, custom functions,
        reentrant checkpointing, no output with a gradient, or inputs too large to try.
    """
    if not _can_be_walked(model, (args, kwargs)):
        return None
    args, kwargs = tree_map(_fed, (list(args), dict(kwargs)))
    with ExitStack() as stack:
        modules = _Timed(model)
        for mode in (torch.enable_grad(), *modes, modules):
            stack.enter_context(mode)
        output = model(*args, **kwargs)
    functions = _functions(output)
    if not functions or any(isinstance(f, torch.autograd.function.BackwardCFunction) for f in functions):
        return None
    inputs = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    return _graph(functions, inputs, modules)


def _can_be_walked(model: nn.Module, example: Any) -> bool:
    weights = [p for p in model.parameters() if p.is_floating_point()]
    size = sum(leaf.numel() for leaf in tree_leaves(example) if isinstance(leaf, Tensor))
    whole = all(p.requires_grad and type(p) is nn.Parameter and not p.is_meta for p in weights)
    return bool(weights) and whole and size <= _LARGEST


def _fed(leaf: Any) -> Any:
    """Inputs that take a gradient can be told from constants."""
    return leaf.detach().requires_grad_() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


class _Timed(ModuleStack):
    """Which module ran between which two of autograd's sequence numbers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, lambda *_: None)
        self._marks: list[tuple[int, str]] = [(0, "")]

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        super()._enter(module, inputs)
        self._marks.append((_get_sequence_nr(), self.top))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        super()._leave(module, inputs, output)
        self._marks.append((_get_sequence_nr(), self.top))

    def assign(self, graph: Graph, times: Mapping[int, int]) -> None:
        """Name the module of each node by its time; nodes and marks are both in order."""
        place = 0
        for node in graph.nodes:
            if node.index in times:
                while place + 1 < len(self._marks) and self._marks[place + 1][0] <= times[node.index]:
                    place += 1
                node.module = self._marks[place][1]


def _functions(output: Any) -> dict[Any, int]:
    """All that an output was made by, in order of execution, with the time of each.

    A write into a view gives its base a function that is older than what it reads: it counts as young as that.
    """
    open_ = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    reads: dict[Any, list[Any]] = {}
    while open_:
        function = open_.pop()
        if function not in reads:
            reads[function] = [f for f, _ in function.next_functions if f is not None]
            open_ += reads[function]
    times: dict[Any, int] = {}
    for function in TopologicalSorter(reads).static_order():
        own = -1 if hasattr(function, "variable") else function._sequence_nr()
        times[function] = max([own, *(times[f] for f in reads[function])])
    return dict(sorted(times.items(), key=lambda item: item[1]))


def _graph(functions: Mapping[Any, int], inputs: set[int], modules: _Timed) -> Graph:
    graph = Graph()
    place: dict[Any, int] = {}
    times: dict[int, int] = {}
    for function, time in functions.items():
        if hasattr(function, "variable"):
            leaf = function.variable
            node = graph.add("input" if id(leaf) in inputs else "param", (), leaf.shape)
            node.data, node.value = id(leaf) in inputs, float(leaf.detach()) if leaf.numel() == 1 else None
        else:
            read = [_read(graph, place, f, number) for f, number in function.next_functions if f is not None]
            node = _operation(graph, function, read)
            times[node.index] = time
        place[function] = node.index
    modules.assign(graph, times)
    return graph


def _read(graph: Graph, place: dict[Any, int], function: Any, number: int) -> int:
    """The node of one of a function's results; the first is the function's own."""
    result = (function, number) if number else function
    if result not in place:
        whole = graph.nodes[place[function]]
        part = graph.add("getitem", (whole.index,), function._input_metadata[number].shape, whole.module)
        part.data = whole.data
        place[result] = part.index
    return place[result]


def _operation(graph: Graph, function: Any, read: Sequence[int]) -> Node:
    name = _CAMEL.sub("_", re.sub(r"(Backward\d*)?$", "", function.name(), count=1)).lower()
    node = graph.add(_RENAMED.get(name, name), read, function._input_metadata[0].shape)
    node.scalars = tuple(_constants(function))
    fed = any(graph.nodes[i].data for i in read) or node.op in ops.EMBEDDING
    node.data = fed or (node.op in ops.PLAIN_PRODUCT and len(read) > 1)
    return node


def _constants(function: Any) -> Iterator[int | float]:
    """The shape that a norm is over, or the one number that a product is with."""
    yield from getattr(function, "_saved_normalized_shape", ())
    other = getattr(function, "_saved_other", None)
    if isinstance(other, Tensor) and other.numel() == 1 and not other.requires_grad:
        yield float(other)
