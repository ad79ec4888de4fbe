"""A forward as plain data: which operation read what, in which module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Scalar = int | float | bool | str


@dataclass(slots=True)
class Node:
    """One operation, or one tensor that came from outside.

    Attributes:
        index: its place in order of execution: inputs always have smaller indices.
        op: base name of the operation without a trailing underscore; ``param``, ``buffer``, ``input`` or ``source``
            for tensors that no recorded operation made.
        inputs: indices of the tensors it read, in order, repeats kept.
        shape: of its (first) result.
        module: path of the innermost module that was running.
        scalars: the numbers, flags and strings among its arguments, flattened.
        options: the same among its keyword arguments, by name.
        data: whether it depends on the example inputs rather than on parameters alone.
        value: the number it holds, where it is a single known one.
        dtype: of its (first) result, as ``float32``; empty where not known.
        hidden: whether its work is done out of sight, in a custom operation or kernel.
        behaves: what probing has shown such a node to be; empty where it has not.
        alpha: of a node that behaves like DyT or Derf.
    """

    index: int
    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    module: str = ""
    scalars: tuple[Scalar, ...] = ()
    options: dict[str, Scalar] = field(default_factory=dict)
    data: bool = False
    value: float | None = None
    dtype: str = ""
    hidden: bool = False
    behaves: str = ""
    alpha: float | None = None


class Graph:
    """Nodes in order of execution."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, op: str, inputs: Iterable[int], shape: Iterable[int], module: str = "") -> Node:
        """Append a node; its other fields are the caller's to fill in."""
        node = Node(len(self.nodes), op, tuple(inputs), tuple(shape), module)
        self.nodes.append(node)
        return node

    def data_inputs(self, index: int) -> list[int]:
        """Inputs that depend on the example inputs, in order, repeats kept."""
        return [i for i in self.nodes[index].inputs if self.nodes[i].data]

    def users(self) -> list[list[int]]:
        """For each node, the nodes that read it, in order."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for i in dict.fromkeys(node.inputs):
                users[i].append(node.index)
        return users
