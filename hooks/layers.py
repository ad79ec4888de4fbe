"""The layers of a model that are observed: its blocks, and rows of branches that no module holds together.

A parent that adds the branches to the stream itself, ``x = x + attend(x); x = x + feed(x)``, keeps them as pairs in a
list, as one list of each kind, or as a list in which the kinds take turns. What belongs together is told by structure.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from stabilitylens.hooks.anatomy.blocks import (
    Group,
    block_groups,
    innermost_blocks,
    is_inside,
    is_whole,
    lists_of,
    single_block,
    without_helpers,
)
from stabilitylens.hooks.anatomy.structure import Structure
from stabilitylens.hooks.names import canonical_names

#: between the names of the modules that make a layer only together
AND = " + "
_ALIKE = 0.3  # heuristic: attention and feed-forward share less of their inner names than two blocks do
_TURNS = 3  # at most attention, cross-attention and feed-forward take turns


def parts_of(layer: str) -> list[str]:
    """Canonical names of the modules that a layer of that name is made of."""
    return layer.split(AND)


def find_layers(model: nn.Module) -> dict[str, tuple[nn.Module, ...]]:
    """The layers by name, in order of definition, each with the modules that it is made of.

    A layer that several modules make only together is called after all of them, ``attn.0 + feed.0``.
    """
    structure = Structure()
    rows = list(_rows(model, structure))
    blocks = [g for g in block_groups(model, structure) if len(g) > 1 or not any(is_inside(g, row) for row in rows)]
    chosen = without_helpers(innermost_blocks([*blocks, *rows], structure), structure)
    columns = [c for c in _columns(model, structure) if not any(is_inside(c[0], g) for g in chosen)]
    covered = {path for column in columns for some in column for path, _ in some}
    chosen = [g for g in chosen if not covered & {path for path, _ in g}]
    layers = [[[member] for member in g] if g not in rows else _in_turns(g, structure) for g in chosen]
    layers += [[list(layer) for layer in zip(*column, strict=True)] for column in columns]
    if not layers and (lone := single_block(model, structure)) and lone[0][0]:
        layers = [[lone]]
    return _named(model, [layer for some in layers for layer in some])


def _named(model: nn.Module, layers: list[Group]) -> dict[str, tuple[nn.Module, ...]]:
    names, used, out = canonical_names(model), set[nn.Module](), dict[str, tuple[nn.Module, ...]]()
    for layer in layers:
        weighted = {m for _, top in layer for m in top.modules() if m._parameters}
        if not weighted <= used:  # else the same modules once more
            out[AND.join(names[path] for path, _ in layer)] = tuple(module for _, module in layer)
        used |= weighted
    return out


def _rows(model: nn.Module, structure: Structure) -> Iterator[Group]:
    """Lists of containers that only hold branches and do not run themselves."""
    for path, parent in model.named_modules():
        for members in lists_of(path, parent):
            silent = all(not structure.runs(m) for _, m in members)
            branching = any(len(m._modules) > 1 and structure.matrices(m) > 1 for _, m in members)
            if members and silent and branching and all(structure.matrices(m) for _, m in members):
                yield members


def _in_turns(row: Group, structure: Structure) -> list[Group]:
    """Layers of a list whose members hold one branch each, where the kinds take turns."""
    kinds = [structure.pattern(m) for _, m in row]
    lone = all(sum(structure.matrices(c) > 0 for c in m.children()) == 1 for _, m in row)
    for n in range(2, _TURNS + 1) if lone and kinds[0] != kinds[-1] else ():
        if len(set(kinds[:n])) == n and len(row) % n == 0 and kinds == kinds[:n] * (len(row) // n):
            return [row[i : i + n] for i in range(0, len(row), n)]
    return [[member] for member in row]


def _columns(model: nn.Module, structure: Structure) -> Iterator[list[Group]]:
    """Lists of one length beside each other, one for each kind of branch, with those of their norms."""
    for path, parent in model.named_modules():
        lists = [(n, c) for n, c in parent.named_children() if isinstance(c, nn.ModuleList) and len(c) > 1 and None not in c._modules.values()]
        groups = [[(f"{path}.{n}.{i}".lstrip("."), m) for i, m in enumerate(c)] for n, c in lists]
        for length in sorted({len(g) for g in groups}):
            column = [g for g in groups if len(g) == length and _is_uniform(g, structure)]
            branches = [g[0][1] for g in column if structure.linear_matrices(g[0][1]) > 1]
            differ = all(structure.similarity(a, b) < _ALIKE for i, a in enumerate(branches) for b in branches[i + 1 :])
            if len(branches) > 1 and differ and not all(is_whole(m, structure) for m in branches):
                yield column


def _is_uniform(group: Group, structure: Structure) -> bool:
    return all(structure.runs(m) and structure.pattern(m) == structure.pattern(group[0][1]) for _, m in group)
