"""Which processes differ in their data and which in their part of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from stabilitylens.hooks.descriptions import Description, same
from stabilitylens.hooks.stages import renamed


def data_groups(all_of: Sequence[Description]) -> dict[int, tuple[int, ...]]:
    """For each rank, those that train the same part of the model on other data.

    Where no wrapper tells, they are the ranks that hold the same values under the same names, or copies that have
    come apart.
    """
    groups: dict[int, tuple[int, ...]] = {}
    if _came_apart(all_of):
        return dict.fromkeys((d.rank for d in all_of), tuple(d.rank for d in all_of))
    for d in all_of:
        twins = tuple(o.rank for o in all_of if not o.data and o.stage == d.stage and _twins(d, o))
        groups[d.rank] = d.data or twins
    return groups


def _twins(a: Description, b: Description) -> bool:
    if a.rank == b.rank:
        return True
    same_names = a.parameters.keys() == b.parameters.keys()
    return same_names and all(x.part == b.parameters[n].part and same(x.print, b.parameters[n].print) for n, x in a.parameters.items())


def _came_apart(all_of: Sequence[Description]) -> bool:
    """Whether all processes hold a whole model each, beginning to end, that differs in its values and its data."""
    first = all_of[0]
    outside = [n for n in first.parameters if renamed(n, dict.fromkeys(first.blocks, "")) == n]
    plain = all(not d.data and d.stage is None and all(len(h.group) == 1 for h in d.parameters.values()) for d in all_of)
    if not plain or not outside or any(d.parameters.keys() != first.parameters.keys() for d in all_of):
        return False
    alike = all(h.size == d.parameters[n].size for d in all_of for n, h in first.parameters.items())
    stream = next((e for e in first.slots if e[0] == "resid"), None)
    return alike and stream is not None and all(stream in d.slots and not same(d.slots[stream], first.slots[stream]) for d in all_of[1:])


def peers_of(all_of: Sequence[Description], groups: Mapping[int, tuple[int, ...]]) -> list[list[Description]]:
    """Descriptions of those that work on the same data, one list for each place among the data."""
    by_place: dict[int, list[Description]] = defaultdict(list)
    for d in all_of:
        group = groups[d.rank]
        by_place[group.index(d.rank) if d.rank in group else 0].append(d)
    return [by_place[i] for i in sorted(by_place)]


def twin_ranks(all_of: Sequence[Description]) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold the same parts of the same parameters, in groups of two or more."""
    by_share: dict[Hashable, list[int]] = defaultdict(list)
    for d in all_of:
        by_share[tuple((n, h.part) for n, h in d.parameters.items())].append(d.rank)
    return tuple(tuple(ranks) for ranks in by_share.values() if len(ranks) > 1)
