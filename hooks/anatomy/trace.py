"""Record one forward as a :class:`Graph`, below autograd, with the module each operation ran in."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.graph import Graph, Node, Scalar
from stabilitylens.hooks.anatomy.hidden import Hidden, is_opaque, watched_functions, written_by
from stabilitylens.hooks.anatomy.probes import probe
from stabilitylens.hooks.anatomy.stack import ModuleStack


class Recorder(TorchDispatchMode):
    """Writes every operation into a graph; tensors are held by weak references, so that memory is freed as usual."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.modules = ModuleStack(model, self._bridge)
        self._known: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._sharing: dict[int, list[weakref.ref[Tensor]]] = {}
        self._asking = False
        for op, tensors in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
            for _, tensor in tensors:
                self.introduce(tensor, op)

    def introduce(self, tensor: Tensor, op: str, data: bool = False) -> Node:
        """Add a tensor that comes from outside."""
        node = self.graph.add(op, (), tensor.shape)
        node.data = data
        node.value = None if data else _number(tensor)
        node.dtype = _dtype(tensor)
        self._remember(tensor, node)
        return node

    def find(self, tensor: Tensor) -> Node | None:
        """Return the node that made a tensor, or None for one that was never seen."""
        reference, index = self._known.get(id(tensor), (None, -1))
        return self.graph.nodes[index] if reference is not None and reference() is tensor else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._asking:
            return func(*args, **kwargs)
        inputs = [self._index(t) for t in _tensors((args, kwargs))]
        result = func(*args, **kwargs)
        outputs = list(_tensors(result))
        if is_opaque(func):
            self._record_opaque(func, inputs, outputs, args, kwargs)
        elif outputs:
            name: str = func._schema.name.split("::")[1]
            in_place = name.endswith("_") and not name.endswith("__")
            node = self._record(name.rstrip("_") if in_place else name, inputs, outputs, args, kwargs)
            if in_place or func._schema.is_mutable:
                self._write_through(outputs[0], node)
        return result

    def _record_opaque(self, func: Any, inputs: Sequence[int], outputs: Sequence[Tensor], args: Any, kwargs: Any) -> None:
        written = written_by(func, args, kwargs) if not outputs else ()
        if not outputs and not written:
            return
        read = [t for t in _tensors((args, kwargs)) if not _among(t, written) or self.graph.nodes[self._index(t)].data]
        call = Hidden(func, args, kwargs, self._moving(read), written)
        node = self._record(func._schema.name.split("::")[1], inputs, outputs or written, args, kwargs)
        for tensor in written:
            self._write_through(tensor, node)
        if node.data:
            self._ask(node, call, read)

    def _moving(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """The activations among tensors."""
        return tuple(t for t in tensors if self.graph.nodes[self._index(t)].data and t.is_floating_point())

    def _ask(self, node: Node, call: Hidden, read: Iterable[Tensor]) -> None:
        """Find out by probing what a hidden node is; without numbers nothing can be probed."""
        node.hidden = True
        if not call.swapped or any(t.is_meta or type(t) not in (Tensor, nn.Parameter) for t in call.swapped):
            return
        learned = any(t.numel() == 1 and not self.graph.nodes[self._index(t)].data for t in read)
        self._asking = True
        try:
            node.behaves, node.alpha = probe(call, call.swapped, learned)
        finally:
            self._asking = False

    def _record(self, op: str, inputs: Sequence[int], outputs: Sequence[Tensor], args: Any, kwargs: Any) -> Node:
        node = self.graph.add(op, inputs, outputs[0].shape, self.modules.top)
        node.dtype = _dtype(outputs[0])
        node.scalars = tuple(_scalars(args))
        node.options = {key: value for key, value in kwargs.items() if isinstance(value, Scalar)}
        fed = any(self.graph.nodes[i].data for i in inputs) and op not in ops.FRESH
        # learned queries: what a product makes of parameters alone is an activation as well
        node.data = fed or (op in ops.PLAIN_PRODUCT and len(inputs) > 1)
        node.value = None if node.data else _number(outputs[0])
        self._remember(outputs[0], node)
        for extra in outputs[1:]:
            part = self.graph.add("getitem", (node.index,), extra.shape, self.modules.top)
            part.data = node.data
            self._remember(extra, part)
        return node

    def _index(self, tensor: Tensor) -> int:
        return (self.find(tensor) or self.introduce(tensor, "source")).index

    def _remember(self, tensor: Tensor, node: Node) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), node.index)
        storage = _storage(tensor)
        if storage is not None:
            alive = [r for r in self._sharing.get(storage, ()) if (t := r()) is not None and t is not tensor]
            self._sharing[storage] = [*alive, weakref.ref(tensor)]

    def _write_through(self, written: Tensor, node: Node) -> None:
        """Let later readers of tensors that share memory with the written one see the write."""
        for reference in self._sharing.get(_storage(written) or 0, ()):
            other = reference()
            before = self.find(other) if other is not None and other is not written else None
            if other is not None and before is not None and before.index != node.index and node.data:
                merged = self.graph.add("merge", (before.index, node.index), other.shape, self.modules.top)
                merged.data = True
                self._known[id(other)] = (reference, merged.index)

    def _bridge(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Connect what came out of a module that hides its work (a custom kernel) with what went in."""
        if not module._modules:
            self._connect(module.forward, inputs, {}, output, list(module.parameters()))

    def bridge_function(self, apply: Callable[..., Any], args: Any, kwargs: Any, output: Any) -> None:
        """The same for a custom ``autograd.Function``."""
        self._connect(apply, args, kwargs, output, [])

    def _connect(
        self, function: Callable[..., Any], args: Any, kwargs: Any, output: Any, weights: Sequence[Tensor]
    ) -> None:
        if self._asking:
            return
        given = [t for t in _tensors((args, kwargs)) if self.find(t) is not None]
        for tensor in _tensors(output) if self._moving(given) else ():
            known = self.find(tensor)
            if known is None or self._is_blank(known):
                read = [*given, *(w for w in weights if self.find(w) is not None)]
                node = self.graph.add("opaque", [self._index(t) for t in read], tensor.shape, self.modules.top)
                node.data, node.dtype = True, _dtype(tensor)
                self._remember(tensor, node)
                self._ask(node, Hidden(function, args, kwargs, self._moving(given)), read)

    def _is_blank(self, node: Node) -> bool:
        """Whether it is memory that no recorded operation has filled."""
        while node.op in ops.PASS and len(node.inputs) == 1:
            node = self.graph.nodes[node.inputs[0]]
        return node.op in ops.EMPTY


def trace(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *modes: Any) -> Graph:
    """Run the model once and return what was computed.

    Args:
        model: the model; its state is the caller's to protect.
        args: positional arguments of its forward.
        kwargs: keyword arguments of its forward.
        modes: further context managers to run under, inside which the recorder stands.
    """
    recorder = Recorder(model)
    for tensor in _tensors((list(args), dict(kwargs))):
        recorder.introduce(tensor, "input", data=True)
    with ExitStack() as stack:
        watched = watched_functions(recorder.bridge_function)
        for mode in (torch.no_grad(), *modes, watched, recorder.modules, recorder):
            stack.enter_context(mode)
        model(*args, **kwargs)
    return recorder.graph


def _among(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    return any(tensor is other for other in others)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _scalars(tree: Any) -> Iterator[Scalar]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Scalar))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _storage(tensor: Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except RuntimeError:  # sparse and other tensors without storage
        return None


def _number(tensor: Tensor) -> float | None:
    known = tensor.numel() == 1 and not tensor.is_meta and type(tensor) in (Tensor, nn.Parameter)
    return float(tensor.detach()) if known and not tensor.is_complex() else None
