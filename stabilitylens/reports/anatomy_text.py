"""A picture of one block in plain text: the trunk, its branches, where each norm sits, and the way of q and k."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from stabilitylens.anatomy import Anatomy, AttentionCall, SubLayer

_TITLES = {"feed_forward": "feed-forward", "parallel": "attention + feed-forward", "other": "other mixing"}
_PLACEMENTS = {
    "pre": "x + F(N(x))",
    "post": "N(x + F(x))",
    "peri": "x + N(F(N(x)))",
    "output": "x + N(F(x))",
    "periodic": "x + F(x), N(x) every few blocks",
    "none": "x + F(x)",
    "mixed": "N(x + F(N(x))), or no single placement",
}
_POSITIONS = {"pre_rope": "before rotation", "post_rope": "after rotation", "no_rope": "no rotation"}


def draw(anatomy: Anatomy) -> str:
    """Draw the blocks of a model; equal blocks in a row are drawn once and counted.

    Args:
        anatomy: what is to be drawn; nothing of it is looked at but plain data.

    Returns:
        Lines of at most 100 characters, joined; a sentence where no branch is known.
    """
    if not anatomy.sub_layers:
        return "\n".join(["No residual branch was observed.", *anatomy.notes])
    lines = [_headline(anatomy), "", "  x"]
    for count, branches in _folded(anatomy.sub_layers):
        lines += _block(count, branches, anatomy)
    lines.append(f"  ● {anatomy.norm_kind or 'norm'} (final)" if anatomy.final_norm else "  ○ no final norm")
    lines += ["  ▼", "", *_qk_path(anatomy), *(f"uncertain: {name}" for name in anatomy.uncertain), *anatomy.notes]
    return "\n".join(lines).rstrip()


def _headline(anatomy: Anatomy) -> str:
    placement = anatomy.norm_placement or "none"
    sizes = [("blocks", anatomy.n_layers), ("d_model", anatomy.d_model), ("heads", anatomy.n_heads)]
    told = ", ".join(f"{name} {value}" for name, value in sizes if value is not None)
    return f"{placement}: {_PLACEMENTS[placement]}" + (f"   ({told})" if told else "")


def _folded(branches: Sequence[SubLayer]) -> list[tuple[int, tuple[SubLayer, ...]]]:
    """Blocks in order, equal neighbours as one with their number."""
    blocks = [tuple(block) for _, block in groupby(branches, key=lambda b: b.layer)]
    alike = [list(run) for _, run in groupby(blocks, key=lambda block: tuple(map(_look, block)))]
    return [(len(run), run[0]) if run[0][0].layer is not None else _repeated(run[0]) for run in alike]


def _repeated(branches: tuple[SubLayer, ...]) -> tuple[int, tuple[SubLayer, ...]]:
    """A sequence as its shortest part and how often that is repeated."""
    looks = [_look(branch) for branch in branches]
    sizes = (n for n in range(1, len(looks) + 1) if looks[:n] * (len(looks) // n) == looks)
    size = next(sizes)
    return len(looks) // size, branches[:size]


def _look(branch: SubLayer) -> tuple[str, str, str | None]:
    return branch.kind, branch.placement, branch.norm_kind


def _block(count: int, branches: Sequence[SubLayer], anatomy: Anatomy) -> list[str]:
    first = branches[0].layer
    where = "outside the blocks" if first is None else _layers(first, count)
    lines = ["  │", f"  │  ┌─ {where}" + (f"  ×{count}" if count > 1 else "")]
    for branch in branches:
        lines += _branch(branch, beside=bool(anatomy.parallel) and branch.kind != "parallel")
    return [*lines, "  │  └─"]


def _layers(first: int, count: int) -> str:
    return f"block {first}" if count == 1 else f"blocks {first}–{first + count - 1}"


def _branch(branch: SubLayer, beside: bool) -> list[str]:
    norm, title = branch.norm_kind or "norm", _TITLES.get(branch.kind, branch.kind)
    steps = [title]
    if branch.placement in ("pre", "peri", "mixed"):
        steps.insert(0, norm)
    if branch.placement in ("output", "peri"):
        steps.append(norm)
    note = "  (beside the one before)" if beside and branch.kind == "feed_forward" else ""
    path = " ─▶ ".join(steps)
    lines = [f"  ├──▶ {path} ─┐{note}", f"  ⊕◀{'─' * (len(path) + 5)}┘"]
    return [*lines, f"  ● {norm}"] if branch.placement in ("post", "mixed") else lines


def _qk_path(anatomy: Anatomy) -> list[str]:
    """How queries and keys get into attention, once for each kind of call."""
    start = ["project to a latent", "norm", "project"] if anatomy.latent_norm else ["project"]
    return [f"q·k: {path}" for path in dict.fromkeys(_path(call, start) for call in anatomy.attention_calls)]


def _path(call: AttentionCall, start: Sequence[str]) -> str:
    steps = list(start)
    if call.qk_norm != "none":
        steps.append(f"QK-Norm ({call.qk_norm}, {_POSITIONS.get(call.qk_norm_position or '', 'place unknown')})")
    steps.append("q·kᵀ" if call.scale is None else f"q·kᵀ × {call.scale:.4g}")
    if call.soft_cap is not None:
        steps.append(f"soft-cap {call.soft_cap:g}")
    return " ─▶ ".join([*steps, "softmax"]) + (" (cross-attention)" if call.cross else "")
