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
    r"""$x \mapsto N(x + F(x))$: the original Transformer, https://arxiv.org/abs/1706.03762; deep ones need warm-up."""

    def __init__(self, branch: nn.Module, norm: MakeNorm) -> None:
        super().__init__(branch)
        self.norm = norm()

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = self.norm(x + self.branch(x, *args, **kwargs))
        return out


@placement("pre")
class PreNorm(Residual):
    r"""$x \mapsto x + F(N(x))$: GPT-2 and Llama; Xiong et al. 2020, https://arxiv.org/abs/2002.04745."""

    def __init__(self, branch: nn.Module, norm: MakeNorm) -> None:
        super().__init__(branch)
        self.norm = norm()

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = x + self.branch(self.norm(x), *args, **kwargs)
        return out


@placement("peri")
class PeriNorm(Residual):
    r"""$x \mapsto x + N_2(F(N_1(x)))$: Gemma 2; Kim et al. 2025, https://arxiv.org/abs/2502.02732; also called sandwich."""

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
    r"""$x \mapsto x + N(F(x))$: OLMo 2, https://arxiv.org/abs/2501.00656, there with QK-Norm, which it needs."""

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

    No source is known for it as a scheme; sometimes it is called peri, which it is not.

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
    r"""$x \mapsto x + \sum_i F_i(N(x))$: GPT-J and PaLM, https://arxiv.org/abs/2204.02311.

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
    r"""$x \mapsto x + F(x)$: no norm; deep ones need small initial branches."""

    def __init__(self, branch: nn.Module, norm: MakeNorm | None = None) -> None:
        super().__init__(branch)

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = x + self.branch(x, *args, **kwargs)
        return out


@placement("rezero")
class ReZero(NoNorm):
    r"""$x \mapsto x + \alpha F(x)$ with a learned α that starts at 0: Bachlechner et al. 2020, https://arxiv.org/abs/2003.04887."""

    def __init__(self, branch: nn.Module, norm: MakeNorm | None = None) -> None:
        super().__init__(branch)
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Stream, *args: Any, **kwargs: Any) -> Stream:
        """Run the sub-layer."""
        out: Tensor = x + self.alpha * self.branch(x, *args, **kwargs)
        return out
