"""A picture of one block in plain text: the trunk, its branches, where each norm sits, and the way of q and k."""

from __future__ import annotations

from collections.abc import Sequence

from stabilitylens.anatomy import Anatomy, SubLayer
from stabilitylens.reports import _anatomy_parts as parts


def draw(anatomy: Anatomy) -> str:
    """Draw the blocks of a model; equal blocks in a row are drawn once and counted.

    Args:
        anatomy: what is to be drawn; nothing of it is looked at but plain data.

    Returns:
        Lines of at most 100 characters, joined; a sentence where no branch is known.
    """
    if not anatomy.sub_layers:
        return "\n".join(["No residual branch was observed.", *anatomy.notes])
    lines = [parts.headline(anatomy), "", "  x"]
    for count, branches in parts.folded(anatomy.sub_layers):
        lines += _block(count, branches, anatomy)
    final = parts.final(anatomy)
    lines.append(f"  ● {final}" if final else "  ○ no final norm")
    lines += ["  ▼", "", *(f"q·k: {' ─▶ '.join(way)}" for way in parts.attention_ways(anatomy)), *parts.doubts(anatomy)]
    return "\n".join(lines).rstrip()


def _block(count: int, branches: Sequence[SubLayer], anatomy: Anatomy) -> list[str]:
    lines = ["  │", f"  │  ┌─ {parts.where(branches, count)}"]
    for branch in branches:
        lines += _branch(branch, parts.beside(branch, anatomy))
    return [*lines, "  │  └─"]


def _branch(branch: SubLayer, beside: bool) -> list[str]:
    note = "  (beside the one before)" if beside else ""
    path = " ─▶ ".join(title for title, _ in parts.steps(branch))
    lines = [f"  ├──▶ {path} ─┐{note}", f"  ⊕◀{'─' * (len(path) + 5)}┘"]
    norm = parts.norm_on_trunk(branch)
    return [*lines, f"  ● {norm}"] if norm else lines
