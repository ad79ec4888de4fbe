"""Put what the graph shows together as an :class:`~stabilitylens.anatomy.Anatomy`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from os.path import commonprefix
from typing import TypeVar

from torch import nn

from stabilitylens.anatomy import Anatomy, AttentionCall, Placement, SubLayer
from stabilitylens.hooks.anatomy import qk, scaling, traits
from stabilitylens.hooks.anatomy.attention import Call, find_calls
from stabilitylens.hooks.anatomy.blocks import find_blocks
from stabilitylens.hooks.anatomy.branches import read_branch
from stabilitylens.hooks.anatomy.flow import Flow, Part
from stabilitylens.hooks.anatomy.graph import Graph
from stabilitylens.hooks.anatomy.origins import is_cross, passes_latent_norm
from stabilitylens.hooks.anatomy.placement import Placed, has_final_norm, norms_below, overall, place_trunk
from stabilitylens.hooks.anatomy.residual import find_residuals, find_trunks

_TOLD = (Part.LINEAR, Part.NORM, Part.ATTENTION)
T = TypeVar("T", bound=Hashable)
_PARALLEL = 0.4  # heuristic: share of adds; in (x + attention) + mlp(x) every second add is a shortcut
_TWO_BLOCKS = 4  # residual adds of two blocks; a lone decoder block has three, with two attention calls
_SURE = 0.8  # heuristic: a smaller majority is reported as uncertain


class Reading:
    """One traced forward, read step by step.

    Attributes:
        flow: the forward.
        blocks: canonical names of the blocks found by structure, in order.
        trunks: chains of residual adds.
        layers: those of the blocks that hold a residual branch.
        placed: the branches with their placement, in order of execution.
        calls: the attention calls, in order of execution.
        hidden: modules whose work leaves no trace (custom kernels), other than linear maps.
        latent: for each call, whether it projects from a normalised latent.
    """

    def __init__(self, graph: Graph, blocks: Sequence[str]) -> None:
        self.flow = Flow(graph)
        self.blocks = list(blocks)
        self.raw_calls = find_calls(self.flow)
        residuals = find_residuals(self.flow)
        if len(self.blocks) == 1 and self._holds_several(self.blocks[0], residuals):
            self.blocks = []
        self.trunks = find_trunks(residuals, lambda add: self.block_of(add) is not None)
        attending = {call.node for call in self.raw_calls}
        adds = set(residuals)
        by_trunk = [[read_branch(self.flow, residuals[a], attending, adds) for a in trunk] for trunk in self.trunks]
        placed = [p for branches in by_trunk for p in place_trunk(self.flow, branches, self._same_block)]
        self.placed = sorted(placed, key=lambda p: p.branch.residual.add)
        used = {self.block_of(p.branch.residual.add) for p in self.placed}
        self.layers = [name for name in self.blocks if name in used]
        self.calls = [self._attention_call(call) for call in self.raw_calls]
        opaque = (n for n in graph.nodes if n.hidden and self.flow.parts[n.index] not in _TOLD)
        self.hidden = list(dict.fromkeys(node.module or node.op for node in opaque))
        self.latent = [passes_latent_norm(self.flow, call, adds, self._same_block) for call in self.raw_calls]

    def block_of(self, node: int) -> str | None:
        """Canonical name of the block a node ran in."""
        module = self.flow.nodes[node].module
        inside = [name for name in self.blocks if not name or module == name or module.startswith(f"{name}.")]
        return max(inside, key=len, default=None)

    def _holds_several(self, block: str, adds: Iterable[int]) -> bool:
        """Whether a lone block is a row of blocks that have no module of their own."""
        attending = sum(self.block_of(call.node) == block for call in self.raw_calls)
        adding = sum(self.block_of(add) == block for add in adds)
        return attending > 2 or (attending == 2 and adding >= _TWO_BLOCKS)

    def _same_block(self, one: int, other: int) -> bool:
        block = self.block_of(one)
        return bool(block) and block == self.block_of(other)

    def _layer(self, node: int) -> int | None:
        block = self.block_of(node)
        return self.layers.index(block) if block in self.layers else None

    def sub_layer(self, placed: Placed, overall: Placement) -> SubLayer:
        """Plain data of one branch; the last of a trunk may be Post-LN only if the others are."""
        otherwise: Placement = "post" if overall == "post" and norms_below(self.flow, placed.branch) else "none"
        branch = placed.branch
        module = commonprefix([self.flow.nodes[i].module.split(".") for i in branch.transforms])
        norm = placed.norms[0] if placed.norms else None
        return SubLayer(
            layer=self._layer(branch.residual.add),
            kind=branch.kind,
            module=".".join(module),
            placement=placed.placement or otherwise,
            norm_kind=norm.kind if norm else None,
            uncertain=placed.placement is None,
            alpha=norm.alpha if norm else None,
        )

    def _attention_call(self, call: Call) -> AttentionCall:
        query, key = qk.path_of(self.flow, call.query), qk.path_of(self.flow, call.key)
        kind, position = qk.qk_norm(self.flow, call, query, key)
        n_heads, d_head = qk.heads(self.flow, call, self._batch())
        return AttentionCall(
            layer=self._layer(call.node),
            module=self.flow.nodes[call.node].module,
            n_heads=n_heads,
            d_head=d_head,
            qk_norm=kind,
            qk_norm_position=position,
            soft_cap=qk.soft_cap(self.flow, call),
            scale=qk.scale(self.flow, call, query, key),
            cross=is_cross(self.flow, call, self.trunks),
            uncertain=bool(query.norms) != bool(key.norms),
        )

    def _batch(self) -> int | None:
        shapes = [self.flow.nodes[i].shape for i in self.trunks[0]] if self.trunks else []
        return shapes[0][0] if shapes and len(shapes[0]) == 3 else None


def assemble(model: nn.Module, graph: Graph) -> Anatomy:
    """Read a traced forward.

    Args:
        model: the model it is of; only its structure is looked at.
        graph: the forward.
    """
    reading = Reading(graph, [name for name, _ in find_blocks(model)])
    calls, placed = reading.calls, reading.placed
    placement, share = overall(placed)
    last = max((p for p in placed if p.branch.residual.add == _end(reading)), default=None, key=lambda p: 0)
    norm_and_place = majority((call.qk_norm, call.qk_norm_position) for call in calls) or ("none", None)
    return Anatomy(
        norm_placement=placement,
        norm_kind=majority(norm.kind for p in placed for norm in p.norms),
        qk_norm=norm_and_place[0],
        qk_norm_position=norm_and_place[1],
        soft_cap=majority(call.soft_cap for call in calls),
        parallel=_is_parallel(placed),
        final_norm=has_final_norm(reading.flow, last, placed, placement),
        n_layers=len(reading.layers) or _attending(reading) or None,
        n_attention=len(calls),
        n_parameters=sum(p.numel() for p in model.parameters()),
        d_model=majority(graph.nodes[p.branch.residual.add].shape[-1] for p in placed),
        n_heads=majority(call.n_heads for call in calls),
        d_head=majority(call.d_head for call in calls),
        attention_scale=majority(call.scale for call in calls),
        latent_norm=majority(reading.latent),
        layers=tuple(reading.layers),
        sub_layers=tuple(reading.sub_layer(p, placement) for p in placed),
        attention_calls=tuple(calls),
        uncertain=_uncertain(reading, share),
        notes=_notes(reading),
        residual_scale=scaling.residual_scale(reading.flow, placed),
        norm_scale=scaling.norm_scale(reading.flow, placed),
        gated=traits.gated(reading.flow, [p.branch for p in placed]),
        reads_tokens=traits.reads_tokens(reading.flow),
        norm_precision=traits.norm_precision(reading.flow, model, [norm for p in placed for norm in p.norms]),
    )


def majority(values: Iterable[T]) -> T | None:
    """The most frequent value, the first of equals; None of nothing."""
    counts = Counter(values).most_common(1)
    return counts[0][0] if counts else None


def _attending(reading: Reading) -> int:
    """Branches with attention, those of cross-attention left out."""
    cross = {call.node for call, plain in zip(reading.raw_calls, reading.calls, strict=True) if plain.cross}
    kinds = ((p.branch.kind, cross.isdisjoint(p.branch.residual.region)) for p in reading.placed)
    return sum(own and kind in ("attention", "parallel") for kind, own in kinds)


def _end(reading: Reading) -> int | None:
    return max((trunk[-1] for trunk in reading.trunks), default=None)


def _is_parallel(placed: Sequence[Placed]) -> bool:
    enough = max(1.0, _PARALLEL * len(placed))
    inside = sum(p.branch.parallel for p in placed)
    beside = sum(p.branch.shortcut for p in placed)
    return inside >= enough or beside >= enough


def _uncertain(reading: Reading, share: float) -> tuple[str, ...]:
    calls = reading.calls
    open_ = {
        "norm_placement": share < _SURE or not reading.placed or bool(reading.hidden) or _is_partial(reading),
        "qk_norm": _disagree([c.qk_norm for c in calls]) or any(c.uncertain for c in calls) or bool(reading.hidden),
        "soft_cap": _disagree([call.soft_cap for call in calls]),
    }
    return tuple(name for name, doubtful in open_.items() if doubtful)


def _is_partial(reading: Reading) -> bool:
    """Whether attention feeds no residual add, or branches without a norm around them have one inside."""
    branches = [p.branch for p in reading.placed]
    inside = {i for branch in branches for i in branch.residual.region}
    apart = [call for call in reading.raw_calls if call.node not in inside]
    bare = [p.branch for p in reading.placed if p.placement == "none"]
    normed = [branch for branch in bare if any(i in reading.flow.norms for i in branch.residual.region)]
    return 2 * len(apart) > len(reading.raw_calls) or 2 * len(normed) > len(branches)


def _disagree(values: Sequence[Hashable]) -> bool:
    return bool(values) and max(Counter(values).values()) < _SURE * len(values)


def _notes(reading: Reading) -> tuple[str, ...]:
    notes = []
    if not reading.calls:
        notes.append("no attention call was found in the forward")
    if not reading.placed:
        notes.append("no residual branch was found in the forward")
    elif not reading.layers:
        notes.append("no module holds a whole block; n_layers counts attention branches")
    elif len(reading.layers) < len(reading.blocks):
        notes.append(f"no residual branch was found in {len(reading.blocks) - len(reading.layers)} of the blocks")
    if reading.hidden:
        notes.append(f"what these modules compute cannot be seen: {', '.join(reading.hidden[:3])}")
    return tuple(notes)
