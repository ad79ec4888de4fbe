"""Read one residual branch: the norms around it, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.flow import TRANSFORMS, Flow, Part
from stabilitylens.hooks.anatomy.norms import Norm
from stabilitylens.hooks.anatomy.residual import Residual

Kind = Literal["attention", "feed_forward", "parallel", "other"]


@dataclass(frozen=True)
class Branch:
    """A residual branch with its norms.

    Attributes:
        residual: the add it belongs to.
        before: a norm between the trunk and most of the first transforms.
        after: a norm between the last transform and the add.
        on_trunk: norms on the trunk above this add, back to the previous one.
        kind: what it computes.
        parallel: whether attention and feed-forward are summed in it.
        shortcut: whether it forks above the previous add, beside whose branch it then runs.
        first: its first transforms.
    """

    residual: Residual
    before: Norm | None
    after: Norm | None
    on_trunk: tuple[Norm, ...]
    kind: Kind
    parallel: bool
    shortcut: bool
    transforms: tuple[int, ...]


def read_branch(flow: Flow, residual: Residual, attention: set[int], adds: set[int]) -> Branch:
    """Read the branch of a residual add.

    Args:
        flow: the flow.
        residual: the add.
        attention: nodes of attention calls.
        adds: all residual adds.
    """
    region = set(residual.region)
    transforms = [i for i in residual.region if flow.parts[i] in TRANSFORMS]
    parallel = _is_parallel(flow, residual, attention, adds)
    return Branch(
        residual,
        _norm_before(flow, region, _first_transforms(flow, residual)),
        _norm_after(flow, residual.branch, region, adds),
        tuple(flow.norms[i] for i in residual.spine if i in flow.norms),
        "parallel" if parallel else _kind(flow, transforms, region & attention),
        parallel,
        residual.root in adds and residual.fork < residual.root,
        tuple(transforms),
    )


def _first_transforms(flow: Flow, residual: Residual) -> list[int]:
    """Transforms that no other transform of the branch feeds, leaving out those that only weigh whole tokens."""
    main = _without_weights(flow, residual)
    fed: set[int] = set()
    first = []
    for i in (i for i in residual.region if i in main):
        is_transform = flow.parts[i] in TRANSFORMS
        if fed.intersection(_weighed(flow, i)):
            fed.add(i)
        elif is_transform:
            first.append(i)
            fed.add(i)
    return first


def _without_weights(flow: Flow, residual: Residual) -> set[int]:
    """The nodes of a branch that its result depends on otherwise than by a weight a token."""
    region, seen, open_ = set(residual.region), {residual.branch}, [residual.branch]
    while open_:
        fresh = [i for i in _weighed(flow, open_.pop()) if i in region and i not in seen]
        seen.update(fresh)
        open_ += fresh
    return seen


def _weighed(flow: Flow, index: int) -> list[int]:
    """What a node reads; of a product with one number a token (a router, hyper-connections) only what is weighed."""
    operands = flow.inputs(index)
    if flow.parts[index] is not Part.GATE:
        return operands
    whole = [i for i in operands if flow.nodes[i].shape[-1:] == flow.nodes[index].shape[-1:]]
    return whole or operands


def _norm_before(flow: Flow, region: set[int], first: list[int]) -> Norm | None:
    found = [norm for i in first if (norm := _norm_above(flow, region, i))]
    return found[0] if found and 2 * len(found) >= len(first) else None


def _norm_above(flow: Flow, region: set[int], transform: int) -> Norm | None:
    seen: set[int] = set()
    open_ = [i for i in flow.inputs(transform) if i in region]
    while open_:
        i = open_.pop()
        if i in flow.norms:
            return flow.norms[i]
        if i not in seen:
            seen.add(i)
            open_ += [j for j in flow.inputs(i) if j in region]
    return None


def _norm_after(flow: Flow, end: int, region: set[int], adds: set[int]) -> Norm | None:
    """A norm on the way from the last transform; where two ways are summed, on both."""
    spine = flow.spine(end)
    norm = next((flow.norms[i] for i in spine if i in region and i in flow.norms), None)
    if norm or flow.parts[spine[-1]] is not Part.ADD or spine[-1] in adds or spine[-1] not in region:
        return norm
    both = [_norm_after(flow, i, region, adds) for i in flow.inputs(spine[-1])[:2]]
    return both[0] if all(both) else None


def _is_parallel(flow: Flow, residual: Residual, attention: set[int], adds: set[int]) -> bool:
    """Whether the branch is a sum of two ways from the fork, one with attention and one without."""
    end = flow.spine(residual.branch)[-1]
    if flow.parts[end] is not Part.ADD or end in adds or end not in residual.region:
        return False
    ways = [flow.between(residual.fork, i) for i in flow.inputs(end)[:2]]
    if not all(any(flow.parts[i] is Part.LINEAR for i in way) for way in ways):
        return False
    attends = [bool(attention.intersection(way)) for way in ways]
    return attends[0] != attends[1]


def _kind(flow: Flow, transforms: list[int], attention: set[int]) -> Kind:
    if attention:
        return "attention"
    computing = [i for i in transforms if flow.nodes[i].op not in ops.COUNTING]
    mixes = any(flow.parts[i] is not Part.LINEAR or _is_wide_convolution(flow, i) for i in computing)
    return "other" if mixes else "feed_forward"


def _is_wide_convolution(flow: Flow, index: int) -> bool:
    node = flow.nodes[index]
    weight = next((flow.nodes[i] for i in node.inputs if not flow.nodes[i].data), None)
    return node.op in ops.CONVOLUTION and weight is not None and any(k > 1 for k in weight.shape[2:])
