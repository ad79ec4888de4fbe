"""Where norms stand around a sub-layer: post, pre, peri, output, periodic, parallel, none, ReZero."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.norms._residual import PLACEMENTS, MakeNorm, Residual, placement

Stream = Float[Tensor, "*row d"]


@placement("post")
class PostNorm(Residual):
    r"""The norm after the sum.

    Formula: $x \mapsto N(x + F(x))$.
    Source: the original Transformer, Vaswani et al. 2017, https://arxiv.org/abs/1706.03762.
    Defaults: none.
    Known failure: gradients near the output are large at first, and those of early layers small: deep ones need warm-up
    (Xiong et al. 2020, https://arxiv.org/abs/2002.04745).
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm) -> None:
        super().__init__(branch)
        self.norm = norm()

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = self.norm(x + self.branch(x, *args, **kwargs))
        return out


@placement("pre")
class PreNorm(Residual):
    r"""The norm before the sub-layer, and none on the stream.

    Formula: $x \mapsto x + F(N(x))$.
    Source: GPT-2 and Llama; Xiong et al. 2020, https://arxiv.org/abs/2002.04745.
    Defaults: none; a last norm after all blocks is the model's to add.
    Known failure: the stream grows with depth, so that late layers change it little (Sun et al. 2025,
    https://arxiv.org/abs/2502.05795).
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm) -> None:
        super().__init__(branch)
        self.norm = norm()

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = x + self.branch(self.norm(x), *args, **kwargs)
        return out


@placement("peri")
class PeriNorm(Residual):
    r"""A norm before the sub-layer and one after it; also called sandwich.

    Formula: $x \mapsto x + N_2(F(N_1(x)))$.
    Source: Gemma 2, https://arxiv.org/abs/2408.00118; Kim et al. 2025, https://arxiv.org/abs/2502.02732.
    Defaults: two norms of one kind, with a gain each.
    Known failure: what a sub-layer adds has a fixed size, however small its weights start; an initialisation that scales
    the last projection by depth does nothing.
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm) -> None:
        super().__init__(branch)
        self.norm, self.norm_after = norm(), norm()

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = x + self.norm_after(self.branch(self.norm(x), *args, **kwargs))
        return out


PLACEMENTS.add("sandwich", PeriNorm, PeriNorm)


@placement("output")
class OutputNorm(Residual):
    r"""The norm on what the sub-layer returns.

    Formula: $x \mapsto x + N(F(x))$.
    Source: OLMo 2, https://arxiv.org/abs/2501.00656, there with QK-Norm.
    Defaults: none.
    Known failure: the sub-layer reads the stream at whatever size it has; without QK-Norm attention logits grow with its square.
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm) -> None:
        super().__init__(branch)
        self.norm = norm()

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = x + self.norm(self.branch(x, *args, **kwargs))
        return out


@placement("periodic")
class PeriodicNorm(PreNorm):
    r"""Pre-norm, and after every k-th sub-layer a norm on the stream itself.

    Formula: $x \mapsto x + F(N_1(x))$, and $x \mapsto N_2(x + F(N_1(x)))$ where k divides the sub-layer's number.
    Source: none is known for it as a scheme; sometimes it is called peri, which it is not.
    Defaults: k = 6.
    Known failure: between two such norms the stream grows as in Pre-LN, and each cuts the straight path of gradients.

    Args:
        layer: the sub-layer's number, from 1.
        every: k.
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm, layer: int, every: int = 6) -> None:
        super().__init__(branch, norm)
        if layer < 1 or every < 1:
            raise BadInput(f"periodic norms count layers and their period from 1, not {layer} and {every}")
        self.stream_norm = norm() if layer % every == 0 else None

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out = super().forward(x, *args, **kwargs)
        return out if self.stream_norm is None else self.stream_norm(out)


@placement("parallel")
class ParallelNorm(PreNorm):
    r"""Several sub-layers read one norm.

    Formula: $x \mapsto x + \sum_i F_i(N(x))$.
    Source: GPT-J; PaLM, https://arxiv.org/abs/2204.02311.
    Defaults: none.
    Known failure: the feed-forward does not see what the attention of its block found; PaLM reports a small loss of quality
    at 8B and none at 62B.

    Arguments after the stream go to the first sub-layer, which is the attention.

    Args:
        others: the sub-layers beside ``branch``.
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm, others: tuple[nn.Module, ...]) -> None:
        super().__init__(branch, norm)
        self.others = nn.ModuleList(others)

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layers."""
        normed = self.norm(x)
        out: Tensor = x + self.branch(normed, *args, **kwargs)
        for other in self.others:
            out = out + other(normed)
        return out


@placement("none")
class NoNorm(Residual):
    r"""No norm.

    Formula: $x \mapsto x + F(x)$.
    Source: residual networks, He et al. 2015, https://arxiv.org/abs/1512.03385, less their norms.
    Defaults: none; a ``norm`` that is given is not made.
    Known failure: the stream's variance may double with each sub-layer; deep ones need small initial branches.
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm | None = None) -> None:
        super().__init__(branch)

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = x + self.branch(x, *args, **kwargs)
        return out


@placement("rezero")
class ReZero(NoNorm):
    r"""No norm, and a learned number before the sub-layer.

    Formula: $x \mapsto x + \alpha F(x)$.
    Source: Bachlechner et al. 2020, https://arxiv.org/abs/2003.04887.
    Defaults: α = 0 at first; a ``norm`` that is given is not made.
    Known failure: at the first step only α has a gradient, and nothing bounds the stream once α has grown.
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm | None = None) -> None:
        super().__init__(branch)
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = x + self.alpha * self.branch(x, *args, **kwargs)
        return out
