"""Where queries and keys come from: this trunk, another one, or a latent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.attention import Call
from stabilitylens.hooks.anatomy.flow import Flow, Part
from stabilitylens.hooks.anatomy.qk import path_of

_LIMIT = 200  # nodes looked through above an operand


def is_cross(flow: Flow, call: Call, trunks: Sequence[Sequence[int]]) -> bool:
    """Whether keys come from another trunk than queries do."""
    trunk_of = {add: number for number, trunk in enumerate(trunks) for add in trunk}
    queries, keys = _origins(flow, call.query, set(trunk_of)), _origins(flow, call.key, set(trunk_of))
    if queries & keys:
        return False
    return not {trunk_of.get(i) for i in queries} & {trunk_of.get(i) for i in keys} - {None}


def _origins(flow: Flow, operand: int, adds: set[int]) -> set[int]:
    """The nearest residual adds above an operand, or what it is made from where there are none."""
    seen, queue, found = {operand}, deque([operand]), set()
    while queue:
        i = queue.popleft()
        above = flow.inputs(i)
        if i in adds or flow.nodes[i].op in ops.EMBEDDING or not above:
            found.add(i)
        elif len(seen) < _LIMIT:
            fresh = [j for j in dict.fromkeys(above) if j not in seen]
            seen.update(fresh)
            queue.extend(fresh)
    return found


def passes_latent_norm(flow: Flow, call: Call, adds: set[int], same_block: Callable[[int, int], bool]) -> bool:
    """Whether queries or keys are projected from a normalised latent that is itself a projection of the stream."""
    roots = {i for operand in (call.query, call.key) for i in path_of(flow, operand).roots}
    return any(_is_latent(flow, i, adds, same_block) for i in roots if flow.parts[i] is Part.LINEAR)


def _is_latent(flow: Flow, projection: int, adds: set[int], same_block: Callable[[int, int], bool]) -> bool:
    above = flow.inputs(projection)
    spine = flow.spine(above[0]) if above else [projection]
    down = spine[-1]
    normed = any(i in flow.norms for i in spine) and not adds.intersection(spine)
    plain = flow.parts[down] is Part.LINEAR and flow.nodes[down].op not in ops.CONVOLUTION
    return normed and plain and same_block(down, projection)
