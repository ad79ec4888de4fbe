"""What there is to see and what was seen, of all processes together; as the classes of one process that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from stabilitylens.anatomy import Anatomy, AttentionCall, SubLayer
from stabilitylens.hooks.loose import Site

Part = TypeVar("Part", SubLayer, AttentionCall)


@dataclass
class WholeSubject:
    """What there is to see of the whole model."""

    blocks: Sequence[str]
    compiled: bool
    unreadable: dict[str, str]
    apart: str = ""


@dataclass
class WholeTaps:
    """What was seen of every process's forward."""

    layers: Sequence[Site]
    attention: Sequence[Site]
    norms: Sequence[Site]
    branch_kinds: dict[int, str]
    skipped: dict[str, str]
    fused: set[str]
    compiled: bool
    ran: bool
    precision: str | None


@dataclass
class WholeParameters:
    """What was seen of every process's parameters."""

    names: list[str]
    with_gradient: set[int]
    skipped_state: set[str]


def put_together(stages: Sequence[tuple[Anatomy, Mapping[str, str]]], blocks: Sequence[str]) -> Anatomy:
    """The anatomy of a model that runs in several pipeline stages.

    Args:
        stages: that of each stage, in order, and the global names of its blocks by their names there.
        blocks: global names of all blocks.
    """
    first, last = stages[0][0], stages[-1][0]
    parameters = [anatomy.n_parameters for anatomy, _ in stages]
    calls = tuple(call for stage in stages for call in _placed(stage[0].attention_calls, *stage, blocks))
    return replace(
        first,
        n_layers=len(blocks),
        n_attention=len(calls),
        n_parameters=None if None in parameters else sum(n or 0 for n in parameters),
        final_norm=last.final_norm,
        layers=tuple(blocks),
        sub_layers=tuple(part for stage in stages for part in _placed(stage[0].sub_layers, *stage, blocks)),
        attention_calls=calls,
        uncertain=tuple(dict.fromkeys(name for anatomy, _ in stages for name in anatomy.uncertain)),
        notes=(*first.notes, f"put together from {len(stages)} pipeline stages"),
    )


def _placed(
    parts: Sequence[Part], anatomy: Anatomy, names: Mapping[str, str], blocks: Sequence[str]
) -> list[Part]:
    """Parts of one stage with the places and names that they have in the whole."""
    out = []
    for part in parts:
        own = anatomy.layers[part.layer] if part.layer is not None and part.layer < len(anatomy.layers) else ""
        name = names.get(own, own)
        layer = blocks.index(name) if name in blocks else part.layer
        out.append(replace(part, layer=layer, module=name + part.module.removeprefix(own) if own else part.module))
    return out
