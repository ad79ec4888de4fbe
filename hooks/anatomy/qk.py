"""What happens to queries and keys on their way from the projection into attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stabilitylens.anatomy import QkNorm, QkNormPosition
from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.attention import Call
from stabilitylens.hooks.anatomy.factors import factor, is_learned
from stabilitylens.hooks.anatomy.flow import TRANSFORMS, Flow, Part
from stabilitylens.hooks.anatomy.graph import Node
from stabilitylens.hooks.anatomy.norms import Norm

_LIMIT = 80  # nodes looked through between an operand and its projection
_ROOTS = TRANSFORMS | {Part.SOFTMAX}


@dataclass(frozen=True)
class Path:
    """One operand's way from its projection.

    Attributes:
        norms: normalisations on the way, nearest to the attention first.
        roots: the projections (or other transforms, or embeddings) it starts from.
        rotated: whether parts of it are recombined on the way, as a rotary embedding does.
        rotated_first: whether that happens before the first of the norms.
    """

    norms: list[Norm] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    rotated: bool = False
    rotated_first: bool = False


def path_of(flow: Flow, operand: int) -> Path:
    """Walk up from an operand of attention to the projections it comes from."""
    above = list(flow.upstream(operand, _ROOTS, _LIMIT))
    roots = [i for i in above if _is_root(flow, i)]
    way = [i for i in above if not _is_root(flow, i)]
    norms = [flow.norms[i] for i in way if i in flow.norms]
    rotated = any(flow.parts[i] in (Part.ADD, Part.JOIN) and _distinct(flow, i) or _complex(flow, i) for i in way)
    first = bool(norms) and any(_rotates(flow, i) for i in _way_to(flow, norms[0].source, set(way)))
    return Path(norms, roots, rotated, first)


def qk_norm(flow: Flow, call: Call, query: Path, key: Path) -> tuple[QkNorm, QkNormPosition | None]:
    """Kind and place of the QK-Norm of a call; ``none`` unless both queries and keys are normalised."""
    if not query.norms or not key.norms:
        return "none", None
    norm, width = query.norms[0], flow.nodes[call.query].shape[-1]
    if norm.kind == "l2":
        kind: QkNorm = "l2"
    else:
        kind = "full" if norm.size is not None and norm.size > width else "head"
    for path in (query, key):
        if path.rotated:
            return kind, "post_rope" if path.rotated_first else "pre_rope"
    return kind, "no_rope"


def soft_cap(flow: Flow, call: Call) -> float | None:
    """The constant c of c·tanh(x/c) between scores and softmax, as the graph multiplies by it."""
    below = call.cap
    while below is not None and below != call.node:
        following = flow.data_users(below)
        below = following[0] if following else None
        if below is not None and flow.nodes[below].op in ops.PRODUCT:
            return factor(flow, flow.nodes[below])
    return None


def scale(flow: Flow, call: Call, query: Path, key: Path) -> float | None:
    """All constant factors from the projections (or their norms) to the softmax; None where one of them is learned.

    Rotations, masks and the gains of norms multiply element by element and are no part of it.
    """
    node = flow.nodes[call.scores]
    factors = [_inner_factor(flow, node)]
    for operand, path in ((call.query, query), (call.key, key)):
        stop = {norm.node for norm in path.norms} | set(path.roots)
        factors += [factor(flow, flow.nodes[i]) or 1.0 for i in _scalings(flow, operand, stop)]
    if call.scores != call.node:
        below = [flow.nodes[i] for i in _scalings(flow, flow.inputs(call.node)[0], {call.scores})]
        factors += [None if is_learned(flow, node) else factor(flow, node) or 1.0 for node in below]
    known = [f for f in factors if f is not None]
    return math.prod(known) if len(known) == len(factors) else None


def heads(flow: Flow, call: Call, batch: int | None) -> tuple[int | None, int | None]:
    """Number of query heads, and the width of one."""
    shape = flow.nodes[call.query].shape
    if call.scores == call.node:
        return (shape[-3] if len(shape) > 3 else None), shape[-1]
    stacked = flow.nodes[call.node].shape
    if len(stacked) > 3:
        return stacked[-3], shape[-1]
    whole = len(stacked) == 3 and batch and stacked[0] % batch == 0
    return (stacked[0] // batch if whole and batch else None), shape[-1]


def _inner_factor(flow: Flow, node: Node) -> float | None:
    """What the operation itself multiplies the product of q and k with."""
    if flow.parts[node.index] is Part.ATTENTION:
        given = node.options.get("scale")
        width = flow.nodes[flow.inputs(node.index)[0]].shape[-1]
        return float(given) if given is not None else 1 / math.sqrt(width)
    return float(node.options.get("alpha", 1.0))


def _scalings(flow: Flow, start: int, stop: set[int]) -> list[int]:
    """Constant factors on the way up, along the operand that leads to a stopping node."""
    found: list[int] = []
    index, floor = start, min(stop, default=0)
    while index not in stop:
        if flow.parts[index] is Part.SCALE:
            found.append(index)
        above = [i for i in flow.inputs(index) if i >= floor and (i in stop or stop & flow.ancestors(i, floor))]
        if not above:
            break
        index = above[0]
    return found


def _is_root(flow: Flow, index: int) -> bool:
    return flow.parts[index] in _ROOTS or flow.nodes[index].op in ops.EMBEDDING


def _distinct(flow: Flow, index: int) -> bool:
    return len(set(flow.inputs(index))) > 1


def _complex(flow: Flow, index: int) -> bool:
    return flow.nodes[index].op in ops.COMPLEX


def _rotates(flow: Flow, index: int) -> bool:
    return (flow.parts[index] is Part.ADD and _distinct(flow, index)) or _complex(flow, index)


def _way_to(flow: Flow, index: int, way: set[int]) -> list[int]:
    return [i for i in flow.upstream(index, _ROOTS, _LIMIT) if i in way]
