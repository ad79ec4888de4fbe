"""Where the norms of each residual branch stand, and what follows the last one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stabilitylens.anatomy import Placement
from stabilitylens.hooks.anatomy.branches import Branch
from stabilitylens.hooks.anatomy.flow import Flow, Part
from stabilitylens.hooks.anatomy.norms import Norm

_MAJORITY = 0.6  # heuristic: below this share of one placement a model is mixed
_REACH = 40  # nodes looked through below the last add
_ONWARD = (Part.PASS, Part.SCALE, Part.JOIN)


@dataclass(frozen=True)
class Placed:
    """A branch with the placement of its norms; None where the end of the trunk leaves it open."""

    branch: Branch
    placement: Placement | None
    norms: tuple[Norm, ...]


def place_trunk(flow: Flow, branches: Sequence[Branch], same_block: Callable[[int, int], bool]) -> list[Placed]:
    """Classify the branches of one trunk in order.

    Args:
        flow: the flow.
        branches: of one trunk.
        same_block: whether two nodes belong to the same block; a norm below the last add is the branch's own where it
            stands in the block of the add.
    """
    placed = []
    for branch, following in zip(branches, [*branches[1:], None], strict=True):
        if following is not None:
            trailing = following.on_trunk
        else:
            own = (n for n in norms_below(flow, branch) if same_block(n.node, branch.residual.add))
            trailing = () if _goes_on(flow, branch.residual.add) else tuple(own)[:1]
        placement = _placement(branch.before, branch.after, trailing)
        around = tuple(norm for norm in (branch.before, branch.after, *trailing) if norm is not None)
        placed.append(Placed(branch, placement if following or placement != "none" else None, around))
    return placed


def _placement(before: Norm | None, after: Norm | None, trailing: tuple[Norm, ...]) -> Placement:
    if before and after:
        return "peri"
    if before:
        return "mixed" if trailing else "pre"
    if after:
        return "output"
    return "post" if trailing else "none"


def norms_below(flow: Flow, branch: Branch) -> list[Norm]:
    """Norms that the stream passes one after the other below the last add of a trunk.

    Streams may be summed on the way; a mean over positions ends it, as what follows is no longer the stream.
    """
    queue, seen, found = deque([branch.residual.add]), {branch.residual.add}, []
    width = flow.nodes[branch.residual.add].shape[-1]
    while queue and len(seen) <= _REACH:
        i = queue.popleft()
        norm = flow.norm_of(i)
        onward = [u for u in flow.data_users(i) if u not in seen and _leads_on(flow, u, width)]
        if norm is not None and norm.node not in seen:
            found.append(norm)
            onward.insert(0, norm.node)
        queue.extend(onward)
        seen.update(onward)
    return found


def _goes_on(flow: Flow, add: int) -> bool:
    """Whether something else is added to the stream as it is, past all norms, as where it is split by a mask."""
    queue, seen = deque([add]), {add}
    while queue and len(seen) <= _REACH:
        users = [u for u in flow.data_users(queue.popleft()) if u not in seen]
        if any(flow.parts[u] is Part.ADD and flow.nodes[u].op == "add" for u in users):
            return True
        queue.extend(u for u in users if flow.parts[u] in _ONWARD)
        seen.update(users)
    return False


def _leads_on(flow: Flow, node: int, width: int) -> bool:
    part, shape = flow.parts[node], flow.nodes[node].shape
    if part is Part.GATE:
        return any(flow.nodes[i].shape[-1] == 1 for i in flow.inputs(node)) and shape[-1] == width
    return part in _ONWARD or (part is Part.REDUCE and len(shape) > 2 and shape[-2] > 1 and shape[-1] == width)


def overall(placed: Sequence[Placed]) -> tuple[Placement, float]:
    """The placement of a model, and the share of branches that have it.

    Branches that hold others, and those that neither attend nor feed forward where most do, have no say.
    """
    adds = {p.branch.residual.add for p in placed}
    simple = [p for p in placed if not adds.intersection(p.branch.residual.region)] or list(placed)
    main = [p for p in simple if p.branch.kind != "other"]
    known = [p.placement for p in (main if 2 * len(main) > len(simple) else simple) if p.placement is not None]
    if not known:
        return "none", 1.0
    if is_periodic(known):
        return "periodic", 1.0
    top, count = Counter(known).most_common(1)[0]
    share = count / len(known)
    return (top if share >= _MAJORITY else "mixed"), share


def is_periodic(placements: Sequence[Placement]) -> bool:
    """Whether branches have no norm, but for one on the trunk at a fixed distance of more than two branches."""
    where = [i for i, placement in enumerate(placements) if placement == "post"]
    steps = {b - a for a, b in zip(where, where[1:], strict=False)}
    return len(steps) == 1 and min(steps) > 2 and set(placements) == {"none", "post"}


def has_final_norm(flow: Flow, last: Placed | None, placed: Sequence[Placed], placement: Placement) -> bool:
    """Whether the stream is normalised once more below the last block, beside its own last norm where it has one."""
    below = norms_below(flow, last.branch) if last else []
    own = placement == "post" or 2 * sum(bool(p.branch.on_trunk) for p in placed) > len(placed)
    return len(below) > (1 if own else 0)
