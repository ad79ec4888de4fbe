"""Anatomy: what a model is, as plain data read off its dataflow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

#: how the note of an anatomy begins whose model could not be run
UNREAD = "not read: "

Placement = Literal["pre", "post", "peri", "output", "periodic", "none", "mixed"]
QkNorm = Literal["none", "head", "full", "l2"]
QkNormPosition = Literal["pre_rope", "post_rope", "no_rope"]


@dataclass(frozen=True)
class SubLayer:
    """One residual branch: what it computes and the norms around it.

    Attributes:
        layer: index of the block it belongs to; None outside any block.
        kind: ``attention``, ``feed_forward``, ``parallel`` (both in one branch) or ``other``.
        module: canonical name of the module that holds the branch, as far as it can be told.
        placement: of this branch's norms alone.
        norm_kind: ``layernorm``, ``rmsnorm``, ``groupnorm``, ``batchnorm``, ``dyt``, ``derf``, … or None.
        alpha: what ``dyt`` or ``derf`` multiplies its input by; None for other norms, and without weights.
    """

    layer: int | None
    kind: str
    module: str
    placement: Placement
    norm_kind: str | None
    uncertain: bool = False
    alpha: float | None = None


@dataclass(frozen=True)
class AttentionCall:
    """One attention call of a forward, in order; fields as in :class:`Anatomy`."""

    layer: int | None
    module: str
    n_heads: int | None
    d_head: int | None
    qk_norm: QkNorm
    qk_norm_position: QkNormPosition | None
    soft_cap: float | None
    scale: float | None
    cross: bool = False
    uncertain: bool = False


@dataclass(frozen=True)
class Anatomy:
    """The model-level view, and the same per sub-layer and attention call.

    Model-level fields are those of the majority of sub-layers or calls; a field whose name is in
    ``uncertain`` could not be told with confidence. None means not known or not applicable.

    Attributes:
        residual_scale: whether a factor, constant or learned, weighs a branch or the stream where they are
            added, as in ReZero, LayerScale and DeepNorm.
        norm_scale: whether a factor that shrinks with depth follows the norms of branches (LayerNorm scaling).
        gated: whether feed-forward branches multiply two projections of their input (SwiGLU and its kin).
        reads_tokens: whether the input is token ids that are looked up in a table.
        norm_precision: what the norms' statistics are computed in where the model is in 16 bit: ``fp32``, ``bf16``
            or ``fp16``.
    """

    norm_placement: Placement | None = None
    norm_kind: str | None = None
    qk_norm: QkNorm | None = None
    qk_norm_position: QkNormPosition | None = None
    soft_cap: float | None = None
    parallel: bool | None = None
    final_norm: bool | None = None
    n_layers: int | None = None
    n_attention: int | None = None
    n_parameters: int | None = None
    d_model: int | None = None
    n_heads: int | None = None
    d_head: int | None = None
    attention_scale: float | None = None
    latent_norm: bool | None = None
    layers: tuple[str, ...] = ()
    sub_layers: tuple[SubLayer, ...] = ()
    attention_calls: tuple[AttentionCall, ...] = ()
    uncertain: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    residual_scale: bool | None = None
    norm_scale: bool | None = None
    gated: bool | None = None
    reads_tokens: bool | None = None
    norm_precision: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the header of a run."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Anatomy:
        """From plain data; keys that this version does not know are left out."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        for name, part in (("sub_layers", SubLayer), ("attention_calls", AttentionCall)):
            rows = known.get(name, ())
            known[name] = tuple(
                part(**{k: v for k, v in row.items() if k in part.__dataclass_fields__}) for row in rows
            )
        for name in ("layers", "uncertain", "notes"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)
