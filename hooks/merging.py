"""From what each process holds to one layout of the whole model, and what each contributes to it.

Pure functions of the descriptions of all processes, so that every process comes to the same plan by itself.
A statistic is counted once: replicas of a parameter by the lowest rank that holds them, a residual stream
that tensor-parallel processes share by one of them, heads by the process that has them, data by everybody.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from stabilitylens.anatomy import Anatomy
from stabilitylens.hooks.descriptions import Description, Held, Site, same
from stabilitylens.hooks.groups import data_groups, peers_of, twin_ranks
from stabilitylens.hooks.meeting import named
from stabilitylens.hooks.stages import ordered, renamed, renamed_key, renumbered, whole_anatomy, with_names

#: taps with a row for each head: tensor-parallel processes have heads of their own
PER_HEAD = frozenset({"attention", "key_value", "query_proj", "key_proj", "soft_cap"})
#: taps whose rows belong to parameters, one key a parameter
PER_PARAMETER = frozenset({"param", "grad", "grad_clipped", "update", "adam"})
#: taps that read parameters by module: the same on processes that differ in their data
OF_WEIGHTS = frozenset({"norm_gain", "dyt_alpha", "expert_grad"})
#: taps that may be zero everywhere at first, and are laid out as another one that is not
LAID_OUT_AS = {"resid_grad": "resid", "resid_4": "resid", "branch": "stream"}


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
    renaming = {rank: blocks for peers in peers_of(given, groups) for rank, blocks in renumbered(peers).items()}
    all_of = [with_names(d, renaming[d.rank]) for d in given]
    owners, sizes, unclear = _of_parameters(all_of, groups)
    entries: dict[tuple[str, Hashable], int] = {}
    offsets: dict[int, dict[tuple[str, Hashable], int]] = {d.rank: {} for d in all_of}
    split_logits = False

    def contribute(entry: tuple[str, Hashable], d: Description, offset: int = 0) -> None:
        offsets[d.rank][entry] = offset
        entries[entry] = max(entries.get(entry, 0), offset + d.rows[entry])

    for peers in peers_of(all_of, groups):
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
        twins=twin_ranks(all_of),
        share={d.rank: 1 / (len(groups[d.rank]) * d.divided) for d in given},
        partial=_of_partial(all_of),
        anatomy=whole_anatomy(given, renaming),
    )


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
        entry = (tap, renamed_key(key, blocks))
        if entry in offsets:
            out[tap, key] = (entry, offsets[entry])
    return out
