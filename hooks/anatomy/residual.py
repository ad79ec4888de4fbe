"""Find the residual adds of a forward and the trunks they form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stabilitylens.hooks.anatomy.flow import TRANSFORMS, Flow, Part

_HOPS = 6  # how many earlier adds up the trunk a branch may have forked from


@dataclass(frozen=True)
class Residual:
    """x + F(x) in the graph.

    Attributes:
        add: the addition.
        skip, branch: its operands.
        spine: from ``skip`` up the trunk to the previous add or the start, nearest first; ``skip`` is its first.
        fork: where on the trunk the branch begins.
        region: the nodes of the branch, after ``fork``, up to ``branch``.
    """

    add: int
    skip: int
    branch: int
    spine: tuple[int, ...]
    fork: int
    region: tuple[int, ...]

    @property
    def root(self) -> int:
        """Where the spine ends: the previous add, or what the trunk starts from."""
        return self.spine[-1]


def find_residuals(flow: Flow) -> dict[int, Residual]:
    """Return the residual adds by their node.

    One operand of such an add is made from the trunk by operations on one tensor alone; the other leaves the trunk at
    some point of it (up to six adds back, as in parallel blocks) and passes a transform. A trunk of several streams that
    are mixed at each add is looked for where there are such products, and taken where it is longer.
    """
    plain = _residuals(flow, mixed=False)
    if all(flow.streams_of(i) is None for i, part in enumerate(flow.parts) if part is Part.PRODUCT):
        return plain
    return max(plain, _residuals(flow, mixed=True), key=lambda found: max(map(len, _chains(found)), default=0))


def _residuals(flow: Flow, *, mixed: bool) -> dict[int, Residual]:
    found: dict[int, Residual] = {}
    for node in flow.nodes:
        if flow.parts[node.index] is Part.ADD and len(node.shape) > 1:
            first, second = flow.inputs(node.index)[:2]
            if flow.nodes[first].shape == flow.nodes[second].shape:
                residual = _residual(flow, found, node.index, first, second, mixed)
                residual = residual or _residual(flow, found, node.index, second, first, mixed)
                if residual:
                    found[node.index] = residual
    return found


def _residual(
    flow: Flow, earlier: dict[int, Residual], add: int, skip: int, branch: int, mixed: bool
) -> Residual | None:
    spine = flow.spine(skip, mixed=mixed)
    trunk, root = list(spine), spine[-1]
    for _ in range(_HOPS):
        if root not in earlier:
            break
        trunk += earlier[root].spine
        root = earlier[root].root
    reach = flow.ancestors(branch, min(trunk))
    fork = next((i for i in trunk if i in reach), None)
    if fork is None:
        return None
    region = flow.between(fork, branch)
    if not any(flow.parts[i] in TRANSFORMS for i in region):
        return None
    return Residual(add, skip, branch, tuple(spine), fork, tuple(region))


def find_trunks(residuals: dict[int, Residual], in_block: Callable[[int], bool]) -> list[list[int]]:
    """Return chains of residual adds, longest first, those inside another's branch left out.

    A chain of two adds or more is a trunk; a single add counts where it stands in a block (stages that change width
    interrupt the trunk), or where there is nothing longer.
    """
    chains: list[list[int]] = []
    covered: list[set[int]] = []
    for chain in _chains(residuals):
        longer = (inside for inside, other in zip(covered, chains, strict=True) if len(other) >= len(chain))
        if not any(inside.intersection(chain) for inside in longer):
            chains.append(chain)
            covered.append({i for add in chain for i in residuals[add].region})
    return [chain for chain in chains if len(chain) > 1 or in_block(chain[0])] or chains


def _chains(residuals: dict[int, Residual]) -> list[list[int]]:
    """Split the adds into chains, the longest first; each add belongs to one."""
    before = {add: residual.root if residual.root in residuals else None for add, residual in residuals.items()}
    length: dict[int | None, int] = {None: 0}
    for add in sorted(residuals):
        length[add] = 1 + length[before[add]]
    used: set[int] = set()
    chains = []
    for last in sorted(residuals, key=lambda add: (-length[add], -add)):
        chain: list[int] = []
        link: int | None = last
        while link is not None and link not in used:
            chain.append(link)
            used.add(link)
            link = before[link]
        if chain:
            chains.append(chain[::-1])
    return chains
