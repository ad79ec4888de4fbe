"""Factors at the residual adds and behind the norms: ReZero, LayerScale, DeepNorm, LayerNorm scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stabilitylens.hooks.anatomy.branches import Branch
from stabilitylens.hooks.anatomy.factors import factor, is_learned
from stabilitylens.hooks.anatomy.flow import Flow, Part
from stabilitylens.hooks.anatomy.placement import Placed

_SHRINKS = 1.2  # heuristic: first factor over last; 1/√l reaches 1.4 in two blocks


def residual_scale(flow: Flow, placed: Sequence[Placed]) -> bool | None:
    """Whether most branches, or the stream beside them, are multiplied by something as they are added."""
    adds = {p.branch.residual.add for p in placed}
    weighed = [_is_weighed(flow, p.branch, adds) for p in placed]
    return 2 * sum(weighed) > len(weighed) if weighed else None


def _is_weighed(flow: Flow, branch: Branch, adds: set[int]) -> bool:
    """What scales the embedding, above the first add, is no part of it."""
    residual = branch.residual
    node = flow.nodes[residual.add]
    if node.op == "lerp" or node.options.get("alpha", 1) != 1:
        return True
    region = set(residual.region)
    on_branch = [i for i in flow.spine(residual.branch) if i in region]
    on_trunk = list(residual.spine[:-1]) if residual.root in adds else []
    return _has_factor(flow, on_branch) or _has_factor(flow, on_trunk)


def _has_factor(flow: Flow, way: Sequence[int]) -> bool:
    """A factor on a way up to the last transform or norm, other than the gain of a norm."""
    scales: list[int] = []
    for i in way:
        norm = flow.norms.get(i)
        if norm is not None:
            inside = norm.statistic is not None or norm.alpha is not None or norm.kind in ("dyt", "derf")
            learned = [s for s in scales if is_learned(flow, flow.nodes[s])]
            return len(scales) > (1 if inside and learned else 0)
        if flow.parts[i] not in (Part.SCALE, Part.PASS):
            break
        if flow.parts[i] is Part.SCALE and _changes(flow, i):
            scales.append(i)
    return bool(scales)


def _changes(flow: Flow, index: int) -> bool:
    node = flow.nodes[index]
    return is_learned(flow, node) or factor(flow, node) not in (1.0, None)


def norm_scale(flow: Flow, placed: Sequence[Placed]) -> bool | None:
    """Whether a constant behind the norms of branches falls with depth (LayerNorm scaling, Sun et al. 2025).

    Source: "The Curse of Depth in Large Language Models", arXiv:2502.05795, where it is 1/√l.
    """
    normed = [p.branch for p in placed if p.branch.before is not None]
    if len(normed) < 3:
        return None
    factors = [_behind(flow, branch) for branch in normed]
    falls = all(b <= a * (1 + 1e-6) for a, b in zip(factors, factors[1:], strict=False))
    return falls and factors[0] > _SHRINKS * factors[-1] > 0


def _behind(flow: Flow, branch: Branch) -> float:
    """The product of the constants between a branch's norm and its first transform."""
    index, product = branch.before.node if branch.before is not None else branch.residual.fork, 1.0
    while True:
        below = [i for i in flow.data_users(index) if flow.parts[i] in (Part.SCALE, Part.PASS)]
        if not below:
            return product
        index = below[0]
        known = factor(flow, flow.nodes[index]) if flow.parts[index] is Part.SCALE else None
        product *= abs(known) if known and math.isfinite(known) else 1.0
