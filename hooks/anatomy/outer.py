"""Products of queries and keys that are spelled out: all pairs, element by element, then a sum over channels."""

from __future__ import annotations

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.graph import Graph, Node

_CHAIN = 4  # longest run of element-wise operations between the pairs and their sum


def find_outer(graph: Graph) -> dict[int, tuple[int, int]]:
    """Return sums over pairs of activations, by node, with the two activations."""
    found = {node.index: _pairs_behind(graph, node) for node in graph.nodes if node.data and node.op in ops.REDUCTION}
    return {node: pair for node, pair in found.items() if pair is not None}


def _pairs_behind(graph: Graph, reduction: Node) -> tuple[int, int] | None:
    index = reduction.index
    for _ in range(_CHAIN):
        operands = list(dict.fromkeys(graph.data_inputs(index)))
        if len(operands) == 2:
            return (operands[0], operands[1]) if _are_pairs(graph, graph.nodes[index], operands) else None
        if len(operands) != 1:
            return None
        index = operands[0]
    return None


def _are_pairs(graph: Graph, node: Node, operands: list[int]) -> bool:
    """Whether each operand is repeated along an axis that the other one has, and both have all channels."""
    one, other = (graph.nodes[i].shape for i in operands)
    if node.op not in ("sub", "mul") or len(one) != len(other) or len(one) < 3 or one[-1] != other[-1]:
        return False
    sizes = list(zip(one, other, strict=True))
    return any(a == 1 < b for a, b in sizes) and any(b == 1 < a for a, b in sizes)
