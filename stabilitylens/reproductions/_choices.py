"""Every choice of the reference Transformer, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stabilitylens.errors import BadInput

Kind = Literal["decoder", "encoder", "vit"]
Placement = Literal["pre", "post", "peri", "output", "periodic", "parallel", "none", "rezero", "deep"]
Init = Literal["torch", "xavier", "scaled"]

#: placements whose stream leaves the last layer as it was summed up, so that a norm has to follow
WITH_FINAL_NORM = frozenset({"pre", "peri", "output", "periodic", "parallel"})


@dataclass(frozen=True)
class Choices:
    r"""What the model is.

    Attributes:
        kind: ``decoder``: causal, logits at each position; ``encoder``: the same without the causal mask; ``vit``: rows of
            pixels in, one row of logits an image.
        vocabulary: tokens, or classes of a ``vit``; ``pixels``: numbers in a patch of an image.
        norm: a name in :data:`stabilitylens.norms.NORMS`; ``placement``: where it stands.
        period: of ``periodic``, in sub-layers.
        qk_norm: RMSNorm on q and k, per head; ``soft_cap``: bound on attention logits.
        init: ``torch``: PyTorch's own; ``xavier``: variance 2 / (in + out); ``scaled``: xavier, and what is added to the
            stream times $1/\sqrt{2L}$ (Radford et al. 2019). ``deep`` placement has its own initialisation on top of xavier.
        layer_norm_scaling: multiply what the norms of layer ℓ return by $1/\sqrt{ℓ}$ (Sun et al. 2025).
        experts: feed-forward networks to choose one from, 0 for a dense one.
        tied: the output matrix is the embedding.
        bias: whether linear layers have one.
        base_width: muP (Yang et al. 2022, https://arxiv.org/abs/2203.03466, their form with output multipliers): sizes and
            learning rates as if the width were this one, so that the best learning rate stays the same while the width
            grows and the number of heads does not. None for the usual scaling.
    """

    kind: Kind = "decoder"
    depth: int = 4
    width: int = 64
    heads: int = 4
    kv_heads: int | None = None
    context: int = 128
    vocabulary: int = 256
    pixels: int = 4
    norm: str = "layer_norm"
    placement: Placement = "pre"
    period: int = 6
    qk_norm: bool = False
    soft_cap: float | None = None
    init: Init = "torch"
    layer_norm_scaling: bool = False
    experts: int = 0
    tied: bool = False
    bias: bool = False
    base_width: int | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise BadInput(f"a width of {self.width} is not divisible by {self.heads} heads")
        if self.heads % (self.kv_heads or self.heads):
            raise BadInput(f"{self.heads} heads can't share {self.kv_heads} key-value heads evenly")
        if self.base_width is not None and self.base_width < 1:
            raise BadInput(f"a base width of {self.base_width} is none; give the width whose learning rate is known")
        if self.tied and self.kind == "vit":
            raise BadInput("a ViT has no token embedding that its head could be tied to; leave tied off")

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def times_base(self) -> float:
        """How often the base width goes into the width; 1 without muP."""
        return self.width / (self.base_width or self.width)
