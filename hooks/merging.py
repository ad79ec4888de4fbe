"""From what each process holds to one layout of the whole model, and what each contributes to it.

Pure functions of the descriptions of all processes, so that every process comes to the same plan by itself.
A statistic is counted once: replicas of a parameter by the lowest rank that holds them, a residual stream
that tensor-parallel processes share by one of them, heads by the process that has them, data by everybody.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stabilitylens.anatomy import Anatomy
from stabilitylens.hooks.meeting import named
from stabilitylens.hooks.whole import put_together

#: taps with a row for each head: tensor-parallel processes have heads of their own
PER_HEAD = frozenset({"attention", "key_value", "query_proj", "key_proj", "soft_cap"})
#: taps whose rows belong to parameters, one key a parameter
PER_PARAMETER = frozenset({"param", "grad", "grad_clipped", "update", "adam"})
#: taps that read parameters by module: the same on processes that differ in their data
OF_WEIGHTS = frozenset({"norm_gain", "dyt_alpha", "expert_grad"})
#: taps that may be zero everywhere at first, and are laid out as another one that is not
LAID_OUT_AS = {"resid_grad": "resid", "resid_4": "resid", "branch": "stream"}

#: a few numbers that are equal where two processes hold the same values
Print = tuple[float, ...]
Site = tuple[str, int]


@dataclass(frozen=True)
class Held:
    """A parameter on one process: its share of it, how many elements that has, and what tells its values apart."""

    group: tuple[int, ...]
    part: tuple[int, ...]
    size: int
    print: Print


@dataclass(frozen=True)
class Description:
    """What one process observes.

    Attributes:
        data: ranks that train the same part of the model on other data; empty where nothing told.
        stage: its pipeline stage where that is known; divided: by what a pipeline's schedule divides gradients.
        parameters: by name; slots: print by tap and key; rows: how many a slot has.
        layers, attention, norms: sites in the order of a forward.
        anatomy: of its part of the model.
        partial: how many values there are of a sum that has yet to be taken, by tap and parameter.
    """

    rank: int
    data: tuple[int, ...]
    stage: int | None
    blocks: tuple[str, ...]
    parameters: Mapping[str, Held]
    slots: Mapping[tuple[str, Hashable], Print]
    rows: Mapping[tuple[str, Hashable], int]
    layers: tuple[Site, ...]
    attention: tuple[Site, ...]
    norms: tuple[Site, ...] = ()
    branch_kinds: Mapping[int, str] = field(default_factory=dict)
    partial: Mapping[tuple[str, str], int] = field(default_factory=dict)
    divided: int = 1
    anatomy: Anatomy | None = None


@dataclass(frozen=True)
class Plan:
    """The whole model.

    Attributes:
        entries: how many rows each tap and key has; parameters by name.
        offsets: for each rank, the first row of an entry that it contributes to, by tap and its own key.
        names: for each rank, the global name of each of its parameters.
        contributors: how many ranks contribute to an entry.
        owners: ranks that count each parameter; sizes: its elements; unclear: why nothing is said of one.
        split_logits: the output logits are split over processes along the vocabulary.
        twins: ranks that hold the same values.
        share: for each rank, the share that a loss of its own has in the loss of all.
        anatomy: of the whole model; None where it can't be put together.
        partial: as in a description, with the ranks whose values are to be added up.
    """

    blocks: tuple[str, ...]
    layers: tuple[Site, ...]
    attention: tuple[Site, ...]
    norms: tuple[Site, ...]
    branch_kinds: Mapping[int, str]
    entries: Mapping[tuple[str, Hashable], int]
    offsets: Mapping[int, Mapping[tuple[str, Hashable], tuple[tuple[str, Hashable], int]]]
    names: Mapping[int, Mapping[str, str]]
    contributors: Mapping[tuple[str, Hashable], int]
    owners: Mapping[str, Sequence[int]]
    sizes: Mapping[str, int]
    unclear: Mapping[str, str]
    split_logits: bool
    twins: tuple[tuple[int, ...], ...]
    share: Mapping[int, float]
    partial: Mapping[tuple[str, str], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    anatomy: Anatomy | None = None


def same(a: Print, b: Print) -> bool:
    """Whether two prints are of the same values, up to the rounding of a reduction."""
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=1e-9, atol=0, equal_nan=True))


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


def _peers(all_of: Sequence[Description], groups: Mapping[int, tuple[int, ...]]) -> list[list[Description]]:
    """Descriptions of those that work on the same data, one list for each place among the data."""
    by_place: dict[int, list[Description]] = defaultdict(list)
    for d in all_of:
        group = groups[d.rank]
        by_place[group.index(d.rank) if d.rank in group else 0].append(d)
    return [by_place[i] for i in sorted(by_place)]


# pipeline stages that number their layers from 0


def _clash(a: Description, b: Description) -> bool:
    """Whether two processes mean different layers by the same name."""
    if any(len(h.group) > 1 and h.group == b.parameters[n].group for n, h in a.parameters.items() if n in b.parameters):
        return False  # parts of one tensor
    shared = [block for block in a.blocks if block in b.blocks]
    for block in shared:
        key = ("resid", (block, 0))
        if key in a.slots and key in b.slots:
            return not same(a.slots[key], b.slots[key])
    return bool(shared) and a.stage != b.stage


def _renumbered(peers: Sequence[Description]) -> dict[int, dict[str, str]]:
    """New names of blocks, by rank, where stages that follow each other number theirs from 0."""
    stages = sorted(peers, key=lambda d: (d.stage if d.stage is not None else d.rank, d.rank))
    firsts: list[tuple[Description, dict[str, str]]] = []
    taken: Counter[str] = Counter()
    out: dict[int, dict[str, str]] = {}
    for d in stages:
        like = next((names for other, names in firsts if other.stage == d.stage is not None or not _clash(other, d) and set(other.blocks) & set(d.blocks)), None)
        clashes = any(_clash(other, d) for other, _ in firsts)
        if like is None:
            like = _shift(d.blocks, taken) if clashes else {}
            firsts.append((d, like))
            for block in d.blocks:
                prefix, index = _split(block)
                taken[prefix] = max(taken[prefix], _split(like.get(block, block))[1] + 1)
        out[d.rank] = like
    return out


def _split(block: str) -> tuple[str, int]:
    """``layers.3`` as ``layers.{}`` and 3."""
    numbers = list(re.finditer(r"(?<![^.])\d+(?![^.])", block))
    if not numbers:
        return block, -1
    last = numbers[-1]
    return f"{block[: last.start()]}{{}}{block[last.end():]}", int(last[0])


def _shift(blocks: Iterable[str], taken: Mapping[str, int]) -> dict[str, str]:
    out = {}
    for block in blocks:
        prefix, index = _split(block)
        out[block] = prefix.replace("{}", str(index + taken.get(prefix, 0)))
    return out


def renamed(name: str, blocks: Mapping[str, str]) -> str:
    """A name of a module or parameter with its block's name replaced."""
    for old, new in blocks.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name


def _renamed_key(key: Hashable, blocks: Mapping[str, str]) -> Hashable:
    """A slot's key, whatever it is made of, with the names in it replaced."""
    if isinstance(key, tuple):
        return tuple(_renamed_key(part, blocks) for part in key)
    return renamed(key, blocks) if isinstance(key, str) else key


def _apply(d: Description, blocks: Mapping[str, str]) -> Description:
    if not blocks:
        return d
    return replace(
        d,
        blocks=tuple(blocks.get(b, b) for b in d.blocks),
        parameters={renamed(n, blocks): h for n, h in d.parameters.items()},
        slots={(t, _renamed_key(k, blocks)): p for (t, k), p in d.slots.items()},
        rows={(t, _renamed_key(k, blocks)): r for (t, k), r in d.rows.items()},
        layers=tuple((renamed(n, blocks), c) for n, c in d.layers),
        attention=tuple((renamed(n, blocks), c) for n, c in d.attention),
        norms=tuple((renamed(n, blocks), c) for n, c in d.norms),
        partial={(t, renamed(n, blocks)): size for (t, n), size in d.partial.items()},
    )


def ordered(lists: Iterable[Iterable[Site]]) -> tuple[Site, ...]:
    """Sites of all processes in the order of a forward: as first seen, and by number among those of one kind."""
    sites = list(dict.fromkeys(site for some in lists for site in some))
    kinds: dict[str, int] = {}
    for name, _ in sites:
        kinds.setdefault(re.sub(r"\d+", "#", name), len(kinds))
    first = {kind: min((i for i, (n, _) in enumerate(sites) if re.sub(r"\d+", "#", n) == kind)) for kind in kinds}
    blocks = {kind: re.match(r"[^#]*", kind)[0] for kind in kinds}  # type: ignore[index]
    start = {p: min(first[k] for k in kinds if blocks[k] == p) for p in set(blocks.values())}

    def place(site: Site) -> tuple[int, list[int], int, int]:
        kind = re.sub(r"\d+", "#", site[0])
        return start[blocks[kind]], [int(n) for n in re.findall(r"\d+", site[0])], first[kind], site[1]

    return tuple(sorted(sites, key=place))


# who contributes what


def _of_parameters(all_of: Sequence[Description], groups: Mapping[int, tuple[int, ...]]) -> tuple[dict[str, list[int]], dict[str, int], dict[str, str]]:
    """Ranks that contribute to each parameter, its elements, and why nothing is said of some."""
    owners: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    unclear: dict[str, str] = {}
    declared = {d.rank: d.data for d in all_of}
    for name in dict.fromkeys(n for d in all_of for n in d.parameters):
        parts: dict[tuple[int, ...], list[tuple[int, Held]]] = defaultdict(list)
        for d in all_of:
            if name in d.parameters:
                parts[d.parameters[name].part].append((d.rank, d.parameters[name]))
        owners[name] = sorted(min(rank for rank, _ in some) for some in parts.values())
        sizes[name] = sum(min(some)[1].size for some in parts.values())
        odd = [r for some in parts.values() for r, h in some[1:] if not _replicas(some[0], (r, h), groups, declared)]
        if odd:
            unclear[name] = (
                f"{named(odd)} and rank {owners[name][0]} hold different values under this name, and nothing "
                "tells whether these are parts of one tensor: shard it as a DTensor"
            )
    return owners, sizes, unclear


def _replicas(
    a: tuple[int, Held], b: tuple[int, Held], groups: Mapping[int, tuple[int, ...]], declared: Mapping[int, tuple[int, ...]]
) -> bool:
    """Whether two processes hold the same part: by contract, or by their values."""
    known = (bool(declared.get(a[0])) and b[0] in groups[a[0]]) or (len(a[1].group) > 1 and a[1].group == b[1].group)
    return known or same(a[1].print, b[1].print)


def _laid_out(entry: tuple[str, Hashable], holders: Sequence[Description]) -> bool:
    """Whether processes that work on the same data see parts of a tensor, not the same one."""
    tap, key = entry
    guide = (LAID_OUT_AS.get(tap, tap), key)
    if all(guide in d.slots for d in holders):
        entry = guide
    differ = any(not same(holders[0].slots[entry], d.slots[entry]) for d in holders[1:])
    keys = ("key_value", key)
    if tap in PER_HEAD and tap not in ("key_value", "key_proj") and all(keys in d.slots for d in holders):
        differ = differ or any(not same(holders[0].slots[keys], d.slots[keys]) for d in holders[1:])
    return differ


def merge(given: Sequence[Description]) -> Plan:
    """The plan for processes of these descriptions, in order of their ranks."""
    groups = data_groups(given)
    renaming = {rank: blocks for peers in _peers(given, groups) for rank, blocks in _renumbered(peers).items()}
    all_of = [_apply(d, renaming[d.rank]) for d in given]
    owners, sizes, unclear = _of_parameters(all_of, groups)
    entries: dict[tuple[str, Hashable], int] = {}
    offsets: dict[int, dict[tuple[str, Hashable], int]] = {d.rank: {} for d in all_of}
    split_logits = False

    def contribute(entry: tuple[str, Hashable], d: Description, offset: int = 0) -> None:
        offsets[d.rank][entry] = offset
        entries[entry] = max(entries.get(entry, 0), offset + d.rows[entry])

    for peers in _peers(all_of, groups):
        for entry in dict.fromkeys(e for d in peers for e in d.slots):
            tap = entry[0]
            holders = [d for d in peers if entry in d.slots]
            if tap in PER_PARAMETER or tap in OF_WEIGHTS:
                continue
            if len(holders) == 1 or not _laid_out(entry, holders):
                contribute(entry, holders[0])
                continue
            split_logits = split_logits or tap == "logits"
            offset = 0
            for d in holders:
                contribute(entry, d, offset)
                offset += d.rows[entry] if tap in PER_HEAD else 0
    for d in all_of:
        for entry in d.slots:
            if entry[0] in OF_WEIGHTS and not any(o.rank < d.rank and entry in o.slots and same(o.slots[entry], d.slots[entry]) for o in all_of):
                contribute(entry, d)
            elif entry[0] in PER_PARAMETER and d.rank in owners[str(entry[1])]:
                contribute(entry, d)
    return Plan(
        blocks=tuple(n for n, _ in ordered([[(b, 0) for b in d.blocks] for d in all_of])),
        layers=ordered(d.layers for d in all_of),
        attention=ordered(d.attention for d in all_of),
        norms=ordered(d.norms for d in all_of),
        branch_kinds={i: kind for d in all_of for i, kind in d.branch_kinds.items()},
        entries=entries,
        offsets={r: _own(given_d, renaming[r], offsets[r]) for r, given_d in ((d.rank, d) for d in given)},
        names={d.rank: {n: renamed(n, renaming[d.rank]) for n in d.parameters} for d in given},
        contributors=Counter(e for some in offsets.values() for e in some),
        owners=owners,
        sizes=sizes,
        unclear=unclear,
        split_logits=split_logits,
        twins=_twin_ranks(all_of),
        share={d.rank: 1 / (len(groups[d.rank]) * d.divided) for d in given},
        partial=_of_partial(all_of),
        anatomy=_anatomy(given, renaming),
    )


def _anatomy(given: Sequence[Description], renaming: Mapping[int, Mapping[str, str]]) -> Anatomy | None:
    stages: dict[tuple[str, ...], tuple[Anatomy | None, dict[str, str]]] = {}
    for d in given:
        names = {block: renaming[d.rank].get(block, block) for block in d.blocks}
        stages.setdefault(tuple(names.values()), (d.anatomy, names))
    blocks = tuple(n for n, _ in ordered([[(b, 0) for b in some] for some in stages]))
    parts = [(a, names) for some, (a, names) in sorted(stages.items(), key=lambda s: blocks.index(s[0][0]) if s[0] else -1) if a]
    if len(parts) < len(stages):
        return None
    return parts[0][0] if len(parts) == 1 else put_together(parts, blocks)


def _of_partial(all_of: Sequence[Description]) -> dict[tuple[str, str], tuple[int, tuple[int, ...]]]:
    """Sums that are yet to be taken: over the processes that share the parameter, in one of their groups."""
    out: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = {}
    for d in all_of:
        for (tap, name), size in d.partial.items():
            group = d.parameters[name].group
            out.setdefault((tap, name), (size, group[:1] if tap == "moment" else group))
    return out


def _own(d: Description, blocks: Mapping[str, str], offsets: Mapping[tuple[str, Hashable], int]) -> dict[tuple[str, Hashable], tuple[tuple[str, Hashable], int]]:
    """Offsets by this process's own keys."""
    out = {}
    for tap, key in d.slots:
        entry = (tap, _renamed_key(key, blocks))
        if entry in offsets:
            out[tap, key] = (entry, offsets[entry])
    return out


def _twin_ranks(all_of: Sequence[Description]) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold the same parts of the same parameters, in groups of two or more."""
    by_share: dict[Hashable, list[int]] = defaultdict(list)
    for d in all_of:
        by_share[tuple((n, h.part) for n, h in d.parameters.items())].append(d.rank)
    return tuple(tuple(ranks) for ranks in by_share.values() if len(ranks) > 1)
