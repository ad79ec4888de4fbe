"""Find the repeated blocks of a model from its structure alone, without running it and without any name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from torch import nn

from stabilitylens.hooks.anatomy.structure import Structure
from stabilitylens.hooks.names import canonical_names

Group = list[tuple[str, nn.Module]]

_NUMBERED = re.compile(r"(.*?)_?\d+")
_SIMILAR = 0.3  # heuristic: shared share of inner names; hybrid layers reach .35, sub-layers of one block .15
_WHOLE = 4  # heuristic: matrices of a lone block: q·k·v, output, up, down; an expert has two or three


def find_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the repeated blocks in order of definition, each once, as (canonical name, module).

    A block is a member of a list (``ModuleList``, ``Sequential``, ``ModuleDict`` or numbered attributes) of similar
    modules that hold at least two weight matrices. Encoders and decoders, and the stages of hierarchical models, each
    contribute their own list. Experts inside a block are not blocks. Without any such list the smallest module that
    holds everything a block has is returned alone.

    Args:
        model: any module, wrapped or not, on any device.

    Returns:
        Blocks, or an empty list where nothing repeats and no single block stands out.
    """
    structure = Structure()
    groups = innermost_blocks(list(block_groups(model, structure)), structure)
    groups = without_helpers(groups, structure) or [single_block(model, structure)]
    names = canonical_names(model)
    return [(names[path], module) for group in groups for path, module in group]


def block_groups(model: nn.Module, structure: Structure) -> Iterator[Group]:
    """Every list of modules that may be blocks, also those inside of others."""
    modules = dict(model.named_modules())
    for path, parent in modules.items():
        for members in lists_of(path, parent):
            group = [(p, m) for p, m in members if p in modules and structure.could_be_block(m)]
            if _repeats(group, structure) and not _is_column(path, group, modules, structure):
                yield group


def lists_of(path: str, parent: nn.Module) -> Iterator[Group]:
    """All children of a container, or the children of any other module that differ by a number only."""
    children = [(f"{path}.{name}" if path else name, child) for name, child in parent.named_children()]
    if isinstance(parent, nn.ModuleList | nn.Sequential | nn.ModuleDict):
        yield children
        return
    stems: dict[str, Group] = {}
    for child_path, child in children:
        if match := _NUMBERED.fullmatch(child_path.rpartition(".")[2]):
            stems.setdefault(match[1], []).append((child_path, child))
    yield from (members for members in stems.values() if len(members) > 1)


def _repeats(group: Group, structure: Structure) -> bool:
    if len(group) < 2:
        return bool(group)
    return any(structure.similarity(a, b) >= _SIMILAR for i, (_, a) in enumerate(group) for _, b in group[i + 1 :])


def _is_column(path: str, group: Group, modules: dict[str, nn.Module], structure: Structure) -> bool:
    """Whether it is one of several parallel lists (all attentions, all norms, …) that make a block only together."""
    parent = modules[path.rpartition(".")[0]] if path else None
    if parent is None or any(structure.norms(m) for _, m in group):
        return False
    lists = [c for c in parent.children() if isinstance(c, nn.ModuleList) and len(c) == len(group)]
    return any(structure.is_norm(member) for siblings in lists for member in siblings)


def innermost_blocks(groups: list[Group], structure: Structure) -> list[Group]:
    """Resolve lists within lists: go down from stages to their blocks, not from blocks to their experts."""
    chosen: list[Group] = []
    for group in groups:
        if any(is_inside(group, other) for other in groups if other is not group):
            continue
        inner = [other for other in groups if other is not group and is_inside(other, group)]
        chosen += innermost_blocks(inner, structure) if inner and _are_stages(group, inner, structure) else [group]
    return chosen


def is_inside(inner: Group, outer: Group) -> bool:
    """Whether a list stands in a member of another."""
    return any(inner[0][0].startswith(f"{path}.") for path, _ in outer)


def _are_stages(outer: Group, inner: list[Group], structure: Structure) -> bool:
    """Beside its blocks a stage has at most one linear map (to change width); beside its experts a block has more."""
    outermost = [g for g in inner if not any(is_inside(g, other) for other in inner if other is not g)]
    for path, module in outer:
        held = [m for group in outermost for p, m in group if p.startswith(f"{path}.")]
        if held and structure.linear_matrices(module) - sum(map(structure.linear_matrices, held)) > 1:
            return False
    return True


def without_helpers(groups: list[Group], structure: Structure) -> list[Group]:
    """Leave out prediction heads, convolutional stems and lone modules where there are real blocks."""
    groups = _prefer(groups, lambda m: structure.norms(m) > 0)
    groups = _prefer(groups, lambda m: structure.linear_matrices(m) > 1)
    longest = max(groups, key=len, default=[])
    if len(longest) < 2:
        return groups
    return [g for g in groups if len(g) > 1 or structure.similarity(g[0][1], longest[0][1]) >= _SIMILAR]


def _prefer(groups: list[Group], has: Callable[[nn.Module], bool]) -> list[Group]:
    return [group for group in groups if any(has(m) for _, m in group)] or groups


def single_block(model: nn.Module, structure: Structure) -> Group:
    """The smallest module that holds everything a block has, alone."""
    path, module = "", model
    while True:
        inner = [(n, c) for n, c in module.named_children() if is_whole(c, structure)]
        if len(inner) != 1:
            break
        path, module = f"{path}.{inner[0][0]}" if path else inner[0][0], inner[0][1]
    return [(path, module)] if is_whole(module, structure) else []


def is_whole(module: nn.Module, structure: Structure) -> bool:
    """Whether it has everything that a block has."""
    complete = structure.norms(module) > 0 and structure.linear_matrices(module) >= _WHOLE
    return complete and any(structure.could_be_block(child) for child in module.children())
