"""What is often said about norms and stability, and is loose or wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Popular:
    """A popular statement.

    Attributes:
        said: as it is retold; ``instead``: what holds, with the source of what is not measured here.
        evidence: claims and quantities of theirs that answer it.
    """

    said: str
    instead: str
    evidence: tuple[tuple[str, str], ...]


POPULAR = (
    Popular(
        "Peri-LN puts a norm every six to eight layers.",
        "Peri-LN is peripheral: x + N(F(N(x))), two norms in every sub-layer, as in Gemma 2 and 3 (https://arxiv.org/abs/2502.02732). "
        "A norm on the stream every few layers is another variant; here its name is periodic.",
        (("where-norms-stand", "peri"), ("periodic-norm", "against_pre")),
    ),
    Popular(
        "GPT-2 is Post-LN.",
        "GPT-2 is Pre-LN. GPT-1 and BERT are Post-LN.",
        (("where-norms-stand", "gpt2_pre"), ("where-norms-stand", "old_post")),
    ),
    Popular(
        "Post-LN computes, normalises, then adds.",
        "Post-LN is N(x + F(x)): it adds first. Computing, normalising and adding, x + N(F(x)), is the output norm of OLMo 2.",
        (("where-norms-stand", "old_post"), ("where-norms-stand", "output")),
    ),
    Popular(
        "Xiong et al. 2020 found that Post-LN's early gradients vanish.",
        "They found that its gradients near the output are large whatever the depth, hence the warm-up "
        "(https://arxiv.org/abs/2002.04745). Vanishing early gradients are the subject of Mix-LN (https://arxiv.org/abs/2412.13795).",
        (("gradients-at-init", "post_slope"), ("gradients-at-init", "pre_slope"), ("post-ln-warm-up", "post_gain")),
    ),
    Popular(
        "Gemma 2 is a Pre-LN model.",
        "It is Peri-LN, with soft-caps of 50 on attention logits and 30 on output logits; the second is from its configuration.",
        (("where-norms-stand", "peri"), ("where-norms-stand", "cap")),
    ),
    Popular(
        "Llama-3, Mistral and Qwen2 have QK-Norm.",
        "They have none. Qwen3, Gemma 3, OLMo 2 and OLMo 3 have it in every layer, Llama 4 in those with rotary positions.",
        (("where-norms-stand", "without_qk"), ("where-norms-stand", "with_qk"), ("where-norms-stand", "llama4")),
    ),
    Popular(
        "BatchNorm makes training fourteen times as fast.",
        "It reached the accuracy of one Inception network in a fourteenth of the steps (https://arxiv.org/abs/1502.03167); that is "
        "neither layers nor wall time, and in small batches BatchNorm is worse than its alternatives.",
        (("batch-norm-small-batches", "BatchNorm"), ("norms-smooth-the-loss", "loss")),
    ),
    Popular(
        "Deep networks can't be trained without normalisation.",
        "They can, if their residual branches start small.",
        (("no-normalisation", "no norm"), ("no-normalisation", "no norm, scaled init"), ("no-normalisation", "ReZero")),
    ),
    Popular(
        "The norms of queries and keys grow with depth.",
        "They grow during training and with the learning rate; at the start deep layers have those of early ones.",
        (("attention-logit-growth", "query_growth"), ("attention-logit-growth", "query_lr"), ("attention-logit-growth", "query_depth")),
    ),
    Popular(
        "GPT models are the ones with LayerNorm.",
        "Cohere, BLOOM, OPT and GPT-NeoX have LayerNorm too, and gpt-oss has RMSNorm.",
        (("where-norms-stand", "layer_norm"), ("where-norms-stand", "gpt_oss")),
    ),
    Popular(
        "From 30 layers on a model needs Pre-LN and QK-Norm, from 60 on Peri-LN.",
        "No source is known for either number; this package calls such thresholds heuristic. What is measured here, of 6 to 24 "
        "layers with Post-LN and of 60 with a periodic norm and with Peri-LN, does not test either.",
        (("post-ln-warm-up", "learned"), ("post-ln-warm-up", "depth"), ("periodic-norm", "against_peri")),
    ),
    Popular(
        "Norms take a large part of a training step.",
        "Fused, all 65 of an 8B model take below one per cent: they cost what their bytes cost. Not fused they cost more.",
        (("rms-norm-speed", "share"),),
    ),
    Popular(
        "DyT has only been tried in small models.",
        "Its authors publish initial α for models up to 70B (https://github.com/jiachenzhu/DyT). What is measured here is small.",
        (("no-normalisation", "DyT"),),
    ),
    Popular(
        "Derf is erf(αx), and loses to LayerNorm.",
        "It is γ erf(αx + s) + β with α = 0.5 and s = 0 at the start; its authors report that it ties with LayerNorm on GPT-2 "
        "(https://arxiv.org/abs/2512.10938).",
        (("no-normalisation", "Derf"), ("no-normalisation", "LayerNorm")),
    ),
)  # fmt: skip
