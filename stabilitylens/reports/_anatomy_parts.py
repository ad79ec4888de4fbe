"""What the pictures of an anatomy have in common: words, folded blocks, and the steps along each way."""

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


def headline(anatomy: Anatomy) -> str:
    """Placement as a formula, and the sizes that are known."""
    placement = anatomy.norm_placement or "none"
    sizes = [("blocks", anatomy.n_layers), ("d_model", anatomy.d_model), ("heads", anatomy.n_heads)]
    told = ", ".join(f"{name} {value}" for name, value in sizes if value is not None)
    return f"{placement}: {_PLACEMENTS[placement]}" + (f"   ({told})" if told else "")


def folded(branches: Sequence[SubLayer]) -> list[tuple[int, tuple[SubLayer, ...]]]:
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


def where(branches: Sequence[SubLayer], count: int) -> str:
    """The place of a folded block, e.g. ``blocks 0–79  ×80``."""
    first = branches[0].layer
    if first is None:
        place = "outside the blocks"
    else:
        place = f"block {first}" if count == 1 else f"blocks {first}–{first + count - 1}"
    return place + (f"  ×{count}" if count > 1 else "")


def steps(branch: SubLayer) -> list[tuple[str, bool]]:
    """What a branch passes, each with whether it is a norm."""
    norm = (branch.norm_kind or "norm", True)
    way = [(_TITLES.get(branch.kind, branch.kind), False)]
    if branch.placement in ("pre", "peri", "mixed"):
        way.insert(0, norm)
    if branch.placement in ("output", "peri"):
        way.append(norm)
    return way


def norm_on_trunk(branch: SubLayer) -> str | None:
    """The norm that the stream passes behind a branch's add."""
    return (branch.norm_kind or "norm") if branch.placement in ("post", "mixed") else None


def beside(branch: SubLayer, anatomy: Anatomy) -> bool:
    """Whether a branch runs beside the one before it."""
    return bool(anatomy.parallel) and branch.kind == "feed_forward"


def attention_ways(anatomy: Anatomy) -> list[tuple[str, ...]]:
    """How queries and keys get into attention, once for each kind of call."""
    start = ("project to a latent", "norm", "project") if anatomy.latent_norm else ("project",)
    return list(dict.fromkeys(_way(call, start) for call in anatomy.attention_calls))


def _way(call: AttentionCall, start: tuple[str, ...]) -> tuple[str, ...]:
    way = list(start)
    if call.qk_norm != "none":
        way.append(f"QK-Norm ({call.qk_norm}, {_POSITIONS.get(call.qk_norm_position or '', 'place unknown')})")
    way.append("q·kᵀ" if call.scale is None else f"q·kᵀ × {call.scale:.4g}")
    if call.soft_cap is not None:
        way.append(f"soft-cap {call.soft_cap:g}")
    return (*way, "softmax" + (" (cross-attention)" if call.cross else ""))


def final(anatomy: Anatomy) -> str | None:
    """The norm behind the last block."""
    return f"{anatomy.norm_kind or 'norm'} (final)" if anatomy.final_norm else None


def doubts(anatomy: Anatomy) -> list[str]:
    """What is not certain, and what was noted."""
    return [*(f"uncertain: {name}" for name in anatomy.uncertain), *anatomy.notes]
