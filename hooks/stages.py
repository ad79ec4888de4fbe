"""Pipeline stages: layers that each numbers from 0 get the numbers of the whole, and all come in the order of a forward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from stabilitylens.anatomy import Anatomy
from stabilitylens.hooks.descriptions import Description, Site, same
from stabilitylens.hooks.whole import put_together


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


def renumbered(peers: Sequence[Description]) -> dict[int, dict[str, str]]:
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


def renamed_key(key: Hashable, blocks: Mapping[str, str]) -> Hashable:
    """A slot's key, whatever it is made of, with the names in it replaced."""
    if isinstance(key, tuple):
        return tuple(renamed_key(part, blocks) for part in key)
    return renamed(key, blocks) if isinstance(key, str) else key


def with_names(d: Description, blocks: Mapping[str, str]) -> Description:
    """A description with the names of its blocks replaced."""
    if not blocks:
        return d
    return replace(
        d,
        blocks=tuple(blocks.get(b, b) for b in d.blocks),
        parameters={renamed(n, blocks): h for n, h in d.parameters.items()},
        slots={(t, renamed_key(k, blocks)): p for (t, k), p in d.slots.items()},
        rows={(t, renamed_key(k, blocks)): r for (t, k), r in d.rows.items()},
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


def whole_anatomy(given: Sequence[Description], renaming: Mapping[int, Mapping[str, str]]) -> Anatomy | None:
    """The anatomy of the whole model; None where that of a part of it is not known."""
    stages: dict[tuple[str, ...], tuple[Anatomy | None, dict[str, str]]] = {}
    for d in given:
        names = {block: renaming[d.rank].get(block, block) for block in d.blocks}
        stages.setdefault(tuple(names.values()), (d.anatomy, names))
    blocks = tuple(n for n, _ in ordered([[(b, 0) for b in some] for some in stages]))
    parts = [(a, names) for some, (a, names) in sorted(stages.items(), key=lambda s: blocks.index(s[0][0]) if s[0] else -1) if a]
    if len(parts) < len(stages):
        return None
    return parts[0][0] if len(parts) == 1 else put_together(parts, blocks)
