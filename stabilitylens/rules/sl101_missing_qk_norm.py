from collections.abc import Iterator

from stabilitylens.anatomy import Anatomy
from stabilitylens.findings import Severity
from stabilitylens.recipe import Recipe
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import at, number
from stabilitylens.rules._logits import LOGIT_HIGH, growth_seen, no_growth

#: heuristic: near the size at which ViT-22B's authors saw divergence without it (https://arxiv.org/abs/2302.05442)
PARAMETERS_LARGE = 7e9
#: from here on logits grew without QK-Norm in small models trained with AdamW (see Evidence)
LR_HIGH = 1e-2


@rule(code="SL101", needs=("anatomy",), since="0.1.0", evidence_scale=2.2e10)
def missing_qk_norm(evidence: Evidence) -> list[Fired]:
    """Queries and keys are normalised, or their logits capped, in every attention call.

    ## What it flags
    Attention calls whose logits nothing bounds: no norm on queries and keys and no soft-cap. This is advice on
    the architecture, so by itself it is

    - information;
    - a warning from 7 billion parameters on, at learning rates of 0.01 or more (SGD excepted), with Muon, or where
      modalities share one stream.

    A recipe that clips query and key weights (`qk_clip`) bounds them too, and is clear.

    A recorded run decides over both: it is an error where a head's `max_attn_logit` grew past 1,000, a
    warning where it is past 100 and rising, and information where logits were recorded and stayed calm.

    ## Why it matters
    Without a norm, logits grow with the norms of queries and keys, which nothing in the loss holds back. With it, they
    are bounded by the learned gains.

    ## Evidence
    - ViT-22B: divergence near 8B parameters with very large attention logits, cured by QK-Norm:
      <https://arxiv.org/abs/2302.05442>.
    - Chameleon reports divergences that QK-Norm prevents: <https://arxiv.org/abs/2405.09818>.
    - Wortsman et al. show in small models that QK-Norm widens the range of learning rates that train:
      <https://arxiv.org/abs/2309.14322>. The method is Henry et al.'s: <https://arxiv.org/abs/2010.04245>.
    - Measured for this rule: 4 layers of width 64 on characters, 300 steps of AdamW. At a learning rate of 0.01 the
      largest logit was 57 without QK-Norm and 6 with it, at 0.1 it was 22,380 and 21.

    Llama 3, Mistral and Qwen2 have no QK-Norm and trained well. That is why it is never an error by itself. The
    size of 7 billion is heuristic.

    ## Example
    4 of 4 attention calls have neither a norm on queries and keys nor a cap on their logits; the learning rate of 0.1
    makes that risky.

    ## Known false positives
    - Models that were already trained and are only fine-tuned at a small learning rate.
    - Bounds that are applied to the weights, such as σReparam or QK-Clip, which the forward does not show; the recipe
      can say the latter.

    ## Remedy
    Add an RMSNorm over each head to queries and keys, before the rotary embedding. Qwen3, Gemma 3 and OLMo 2 have
    one. Otherwise watch `max_attn_logit`, and lower the learning rate when it rises past 100.
    """
    bare, total = _unbounded(evidence.anatomy)
    if not bare or (evidence.recipe is not None and evidence.recipe.qk_clip):
        return []
    severity, reason, confidence = _weigh(evidence)
    uncertain = evidence.anatomy is not None and "qk_norm" in evidence.anatomy.uncertain
    calls = f"{bare} of {total} attention calls have" if total > 1 else "the attention call has"
    message = f"{calls} neither a norm on queries and keys nor a cap on {'their' if total > 1 else 'its'} logits"
    return [Fired(severity, f"{message}; {reason}", confidence=confidence * (0.5 if uncertain else 1.0))]


def _unbounded(anatomy: Anatomy | None) -> tuple[int, int]:
    """Attention calls without a norm or a cap, of all calls."""
    if anatomy is None or anatomy.n_attention == 0:
        raise Lacks("an attention call in the model")
    if anatomy.attention_calls:
        calls = anatomy.attention_calls
        return sum(call.qk_norm == "none" and call.soft_cap is None for call in calls), len(calls)
    if anatomy.qk_norm is None:
        raise Lacks("whether queries and keys are normalised")
    total = anatomy.n_attention or 1
    return (total if anatomy.qk_norm == "none" and anatomy.soft_cap is None else 0), total


def _weigh(evidence: Evidence) -> tuple[Severity, str, float]:
    """Severity, why, and confidence: what was measured decides, else the risks of the recipe."""
    grown = growth_seen(evidence)
    if grown:
        worst = grown[0]
        level = f"max_attn_logit of {at(worst.track.where)} grew to {number(worst.level)}"
        return ("error" if worst.level > LOGIT_HIGH else "warning"), level, 0.95
    risks = list(_risks(evidence.anatomy, evidence.recipe))
    if grown is not None and evidence.run is not None:
        return "info", no_growth(evidence.run), 0.8
    if risks:
        return "warning", f"{' and '.join(risks)} make{'s' if len(risks) == 1 else ''} that risky", 0.6
    return "info", "nothing in its size or recipe makes that risky", 0.5


def _risks(anatomy: Anatomy | None, recipe: Recipe | None) -> Iterator[str]:
    size = anatomy.n_parameters if anatomy is not None else None
    if size is not None and size >= PARAMETERS_LARGE:
        yield f"the size of {size / 1e9:.3g} billion parameters"
    if recipe is not None and recipe.multimodal:
        yield "the mix of modalities in one stream"
    optimizer = (recipe.optimizer or "").lower() if recipe is not None else ""
    if "muon" in optimizer:
        yield "the optimizer Muon"
    elif recipe is not None and recipe.lr is not None and recipe.lr >= LR_HIGH and "sgd" not in optimizer:
        yield f"the learning rate of {recipe.lr:g}"
