"""Find normalisations in a graph: fused ones, and x·g(reduce(x)) with a root in g, whatever they are called."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.graph import Graph, Node

_BEHAVING = frozenset({"layernorm", "rmsnorm", "groupnorm", "l2", "dyt", "derf"})
_CHAIN = 14  # longest run of element-wise operations looked through between a statistic and its use


@dataclass(frozen=True)
class Norm:
    """A normalisation in the graph.

    Attributes:
        node: the operation whose result is normalised.
        source: the tensor it normalises.
        kind: ``layernorm``, ``rmsnorm``, ``groupnorm``, ``batchnorm``, ``l2``, ``dyt`` or ``derf``.
        size: how many elements share one statistic (the width, for element-wise kinds); None where not known.
        statistic: the reduction, where it is an operation of its own.
        alpha: what an element-wise kind multiplies its input by, where that is a known number.
    """

    node: int
    source: int
    kind: str
    size: int | None
    statistic: int | None = None
    alpha: float | None = None


def find_norms(graph: Graph) -> dict[int, Norm]:
    """Return the normalisations of a graph by their node.

    DyT is tanh(αx) and Derf erf(αx + s) with a learned scalar α, elementwise in place of a norm (Zhu et al. 2025,
    "Transformers without Normalization").
    """
    found = (_norm_at(graph, node) for node in graph.nodes if node.data)
    norms = {norm.node: norm for norm in found if norm is not None}
    return {i: _named_by_gain(graph, norm) for i, norm in norms.items()}


def _norm_at(graph: Graph, node: Node) -> Norm | None:
    if node.behaves in _BEHAVING:
        source = graph.data_inputs(node.index)[0]
        return Norm(node.index, source, node.behaves, _last(graph, source), alpha=node.alpha)
    if node.op in ops.FUSED_NORM:
        return _fused(graph, node)
    if node.op in ("tanh", "erf"):
        return _squash(graph, node)
    operands = graph.data_inputs(node.index)
    if node.op in ops.PRODUCT and len(operands) == 2:
        first, second = operands
        return _statistical(graph, node, first, second) or _statistical(graph, node, second, first)
    return None


def _fused(graph: Graph, node: Node) -> Norm | None:
    operands = graph.data_inputs(node.index)
    if not operands:
        return None
    for kind in ("group", "batch", "instance"):
        if kind in node.op:
            return Norm(node.index, operands[0], f"{kind}norm", None)
    sizes = [s for s in node.scalars if isinstance(s, int) and not isinstance(s, bool)]
    size = math.prod(sizes) if sizes else _last(graph, operands[0])
    return Norm(node.index, operands[0], "layernorm" if "layer" in node.op else "rmsnorm", size)


def _squash(graph: Graph, node: Node) -> Norm | None:
    """Element-wise saturation of a learned multiple of its input."""
    kind, i = ("dyt" if node.op == "tanh" else "derf"), node.index
    for _ in range(4):
        operands = graph.data_inputs(i)
        if len(operands) != 1:
            return None
        i = operands[0]
        current = graph.nodes[i]
        alpha = next((graph.nodes[j] for j in current.inputs if _is_learned_scalar(graph, j)), None)
        if current.op == "mul" and alpha is not None:
            sources = graph.data_inputs(i)
            known = Norm(node.index, sources[0], kind, _last(graph, sources[0]), alpha=alpha.value) if sources else None
            return known if len(sources) == 1 else None
        if current.op not in ops.CAST | ops.SUM:
            return None
    return None


def _is_learned_scalar(graph: Graph, index: int) -> bool:
    """Whether it is a single number made of parameters, such as α or α + 1."""
    node = graph.nodes[index]
    if node.data or math.prod(node.shape) != 1:
        return False
    return node.op == "param" or any(_is_learned_scalar(graph, i) for i in node.inputs)


def _statistical(graph: Graph, product: Node, operand: int, statistic: int) -> Norm | None:
    reduction = _reduction_behind(graph, statistic)
    if reduction is None:
        return None
    reduced = graph.data_inputs(reduction.index)[0]
    source, centred = _strip_moment(graph, reduced)
    operand_source, operand_centred = _strip_operand(graph, operand, source)
    if source != operand_source:
        return None
    if centred or operand_centred or "var" in reduction.op or "std" in reduction.op:
        kind = "layernorm"
    else:
        kind = "l2" if reduction.op in ops.VECTOR_NORM else "rmsnorm"
    return Norm(product.index, source, kind, _last(graph, reduced), reduction.index)


def _reduction_behind(graph: Graph, index: int) -> Node | None:
    """The reduction that a statistic is a function of, if a root is taken on the way."""
    rooted = False
    for _ in range(_CHAIN):
        node = graph.nodes[index]
        operands = graph.data_inputs(index)
        rooted |= node.op in ops.ROOT
        if node.op in ops.REDUCTION:
            return node if rooted and operands else None
        if len(operands) != 1 or node.op in ops.MATMUL | ops.SOFTMAX | {"exp"}:
            return None
        index = operands[0]
    return None


def _strip_moment(graph: Graph, index: int) -> tuple[int, bool]:
    """What a (centred) second moment is a moment of, and whether it is centred."""
    centred = False
    for _ in range(_CHAIN):
        node = graph.nodes[index]
        operands = list(dict.fromkeys(graph.data_inputs(index)))
        squared = node.op == "mul" and len(operands) == 1 and node.inputs.count(operands[0]) == 2
        centring = node.op == "sub" and len(operands) == 2
        if not (centring or squared or (node.op in ops.SQUARE | ops.CAST and len(operands) == 1)):
            break
        centred |= centring
        index = operands[0]
    return index, centred


def _strip_operand(graph: Graph, index: int, source: int) -> tuple[int, bool]:
    """Follow the other operand up to the source, past centring, casts and constant factors."""
    centred = False
    for _ in range(_CHAIN):
        node = graph.nodes[index]
        operands = list(dict.fromkeys(graph.data_inputs(index)))
        centring = node.op == "sub" and len(operands) == 2
        if index == source or not (centring or (node.op in ops.CAST | ops.PRODUCT and len(operands) == 1)):
            break
        centred |= centring
        index = operands[0]
    return index, centred


def _named_by_gain(graph: Graph, norm: Norm) -> Norm:
    """x/‖x‖·√d is RMSNorm written with a vector norm."""
    if norm.kind != "l2" or not norm.size:
        return norm
    for node in graph.nodes[norm.node + 1 : norm.node + 1 + _CHAIN]:
        if node.op == "mul" and norm.node in node.inputs:
            gains = [float(s) for s in node.scalars if not isinstance(s, str)]
            gains += [v for i in node.inputs if (v := graph.nodes[i].value) is not None]
            if any(math.isclose(g, math.sqrt(norm.size), rel_tol=1e-3) for g in gains):
                return replace(norm, kind="rmsnorm")
    return norm


def _last(graph: Graph, index: int) -> int | None:
    shape = graph.nodes[index].shape
    return shape[-1] if shape else None
