"""The graph seen as flow: each node's part in it, and walks along it. Norms count as single steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.graph import Graph, Node
from stabilitylens.hooks.anatomy.norms import Norm, find_norms
from stabilitylens.hooks.anatomy.outer import find_outer


class Part(Enum):
    """What a node does to the data that flows through it."""

    CONSTANT = auto()
    NORM = auto()
    ATTENTION = auto()
    LINEAR = auto()  # data by weights
    PRODUCT = auto()  # data by data
    MIXING = auto()  # over positions, without weights
    SOFTMAX = auto()
    ADD = auto()  # data plus data, element by element
    PASS = auto()
    SCALE = auto()
    GATE = auto()  # data times data, element by element
    JOIN = auto()
    REDUCE = auto()
    ACTIVATION = auto()
    UNARY = auto()
    LOOKUP = auto()  # a table read by index: where an activation begins
    OTHER = auto()


TRANSFORMS = frozenset({Part.LINEAR, Part.PRODUCT, Part.ATTENTION, Part.MIXING})
_TRANSPARENT = frozenset({Part.PASS, Part.SCALE, Part.NORM, Part.ACTIVATION, Part.UNARY})

_STREAMS = 8  # heuristic: most streams side by side; models have 2 to 4


class Flow:
    """A graph with the part of each node; the walks that the analysis is made of.

    Attributes:
        graph: what was traced.
        norms: normalisations by node.
        parts: the part of each node.
        users: for each node, who reads it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.nodes
        self.norms: dict[int, Norm] = find_norms(graph)
        self._outer = find_outer(graph)
        self.users = graph.users()
        self.parts = [self._part(node) for node in graph.nodes]
        self._normed_by = {norm.source: norm for norm in reversed(self.norms.values())}

    def inputs(self, index: int) -> list[int]:
        """Data inputs of a node; a norm reads only what it normalises, a sum over pairs what the pairs are of."""
        norm = self.norms.get(index)
        if norm is not None:
            return [norm.source]
        return list(self._outer.get(index, ())) or self.graph.data_inputs(index)

    def norm_of(self, index: int) -> Norm | None:
        """The first norm that reads this node."""
        return self._normed_by.get(index)

    def spine(self, index: int, *, mixed: bool = False) -> list[int]:
        """The node and what it is made from by operations on one tensor alone, nearest first.

        Args:
            index: the node.
            mixed: whether several streams side by side that are mixed with each other count as one tensor.
        """
        path = [index]
        while (above := self._one_above(path[-1], mixed)) is not None:
            path.append(above)
        return path

    def _one_above(self, index: int, mixed: bool) -> int | None:
        if self.parts[index] in _TRANSPARENT:
            return next(iter(self.inputs(index)), None)
        return self.streams_of(index) if mixed else None

    def streams_of(self, index: int) -> int | None:
        """The streams that a product mixes, a few side by side (hyper-connections); None for any other product."""
        operands = self.inputs(index)
        if self.parts[index] is not Part.PRODUCT or len(operands) < 2 or len(self.nodes[index].shape) < 3:
            return None
        weights, streams = operands[:2]
        few = self.nodes[index].shape[-2]
        square = self.nodes[weights].shape[-2:] == (few, few) and few <= _STREAMS
        same = self.nodes[streams].shape == self.nodes[index].shape
        return streams if square and same and self.parts[self.spine(weights)[-1]] is not Part.SOFTMAX else None

    def ancestors(self, index: int, least: int = 0) -> set[int]:
        """The node and all it depends on, down to the smallest index of interest."""
        seen, open_ = {index}, [index]
        while open_:
            for i in self.inputs(open_.pop()):
                if i >= least and i not in seen:
                    seen.add(i)
                    open_.append(i)
        return seen

    def between(self, start: int, end: int) -> list[int]:
        """Nodes on paths from start (left out) to end, in order."""
        below, region = {start}, []
        for i in sorted(self.ancestors(end, start + 1)):
            if any(j in below for j in self.inputs(i)):
                below.add(i)
                region.append(i)
        return region

    def upstream(self, index: int, stop: frozenset[Part], limit: int) -> Iterator[int]:
        """Visit what a node depends on, nearest first, not past the given parts, at most ``limit`` nodes."""
        seen, queue = {index}, deque([index])
        while queue:
            i = queue.popleft()
            if len(seen) > limit:
                return
            yield i
            if self.parts[i] in stop:
                continue
            fresh = [j for j in dict.fromkeys(self.inputs(i)) if j not in seen]
            seen.update(fresh)
            queue.extend(fresh)

    def data_users(self, index: int) -> list[int]:
        """Nodes that read this one and carry data on."""
        return [i for i in self.users[index] if self.nodes[i].data]

    def _part(self, node: Node) -> Part:
        if not node.data:
            return Part.CONSTANT
        if node.index in self.norms:
            return Part.NORM
        if node.index in self._outer:
            return Part.PRODUCT
        if node.behaves == "attention" or any(name in node.op for name in ops.FUSED_ATTENTION):
            return Part.ATTENTION
        operands = self.graph.data_inputs(node.index)
        several, distinct = len(operands) > 1, len(set(operands)) > 1
        if node.op in ops.MATMUL:
            return Part.PRODUCT if self._multiplies_data(node) else Part.LINEAR
        if node.op in ops.EMBEDDING:
            return Part.LOOKUP
        if node.op in ops.MIXING:
            return Part.MIXING
        if node.op not in ops.KNOWN and any(self._is_matrix(i) for i in node.inputs):
            return Part.LINEAR
        if node.op in ops.SOFTMAX:
            return Part.SOFTMAX
        if node.op in ops.SUM:
            return Part.ADD if several else Part.PASS
        if node.op in ops.ACTIVATION:
            return Part.ACTIVATION
        if node.op in ops.PRODUCT:
            return Part.GATE if several else Part.SCALE
        if node.op in ops.JOIN | ops.PASS:
            return Part.JOIN if distinct else Part.PASS
        if node.op in ops.REDUCTION:
            return Part.REDUCE
        return Part.OTHER if distinct else Part.UNARY

    def _multiplies_data(self, node: Node) -> bool:
        """Whether both factors are activations; weights looked up by data, as experts' are, remain weights."""
        factors = node.inputs[1:3] if node.op in ops.BIASED else node.inputs[:2]
        return len(factors) > 1 and all(self.nodes[i].data and not self._is_matrix(i) for i in factors)

    def _is_matrix(self, index: int) -> bool:
        """Whether it is a parameter of two or more dimensions, perhaps transposed or cast, or a part of one."""
        node = self.nodes[index]
        while node.op in ops.LOOKUP or (node.op in ops.PASS and len(node.inputs) == 1):
            if node.op in ops.EMBEDDING and self._is_given(node):
                return False
            node = self.nodes[node.inputs[0]]
        return node.op == "param" and len(node.shape) > 1

    def _is_given(self, lookup: Node) -> bool:
        """Whether what is looked up is an input itself, as tokens are, and not chosen by the model, as experts are."""
        index = next(reversed(self.graph.data_inputs(lookup.index)), None)
        while index is not None and self.nodes[index].op in ops.PASS:
            index = next(iter(self.graph.data_inputs(index)), None)
        return index is not None and self.nodes[index].op == "input"
