from stabilitylens.recipe import Recipe
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._recipe import beta2_of, stated

#: heuristic: β2 = 0.99 with the usual β1 = 0.9; 0.95, which stayed calm in our measurement, has 0.5 (see Evidence)
GAP = 0.1
#: heuristic: the smallest batch of GPT-3, whose β2 is 0.95 (https://arxiv.org/abs/2005.14165)
TOKENS = 500_000
#: heuristic: samples where tokens are not counted, as in contrastive training of images and text
SAMPLES = 4096


@rule(code="SL603", needs=("recipe",), since="0.1.0", evidence_scale=1e9)
def beta2_gap(evidence: Evidence) -> list[Fired]:
    """With large batches, Adam's second moment forgets about as fast as its first.

    ## What it flags
    (1−β2)/(1−β1) of 0.1 or less, as with β1 = 0.9 and β2 = 0.99 or 0.999, where a step sees 500,000 tokens or more, or
    4,096 samples or more where tokens are not known: a warning. With smaller batches it is clear.

    ## Why it matters
    A second moment that remembers much longer than the first goes on dividing by old gradients: they shrink while the
    loss falls, steps grow, and a spike follows. Large batches have little noise that would keep it up to date.

    ## Evidence
    - Ma, Wu and E find oscillation, spikes and divergence depending on both, and the smoothest course where they are close
      to each other: <https://arxiv.org/abs/2009.06125>.
    - Bai et al. map stable convergence, spikes and oscillation over β1 and β2: <https://arxiv.org/abs/2603.09581>.
    - Wortsman et al. find loss spikes grow with batch size, and that a smaller β2 avoids them:
      <https://arxiv.org/abs/2304.13013>.
    - Measured for this rule: Adam on x²/2 with β1 = 0.9 leaves the minimum 104 times in 50,000 steps with β2 = 0.999, 1,786
      times with 0.98 and never with 0.95.

    All three thresholds are heuristic. GPT-3 used 0.95 from 500,000 tokens a step on: <https://arxiv.org/abs/2005.14165>.

    ## Example
    (1−β2)/(1−β1) is 0.01 with β1 = 0.9 and β2 = 0.999, at 4,194,304 tokens a step.

    ## Known false positives
    - Fine-tuning, whose gradients do not shrink by much.
    - Sparse gradients, as of large embedding tables, which need a long memory.

    ## Remedy
    β2 = 0.95, which needs a warm-up of 40 steps only.
    """
    recipe = stated(evidence)
    beta2 = beta2_of(recipe)
    if recipe.beta1 is None or not 0 <= recipe.beta1 < 1:
        raise Lacks("the optimizer's beta1 is not known")
    gap = (1 - beta2) / (1 - recipe.beta1)
    if gap > GAP * (1 + 1e-9):
        return []
    size, limit, unit = _step(recipe)
    if size < limit:
        return []
    message = f"(1−β2)/(1−β1) is {gap:.2g} with β1 = {recipe.beta1:g} and β2 = {beta2:g}, at {size:,} {unit} a step"
    return [Fired("warning", message, gap, GAP, confidence=0.5)]


def _step(recipe: Recipe) -> tuple[int, int, str]:
    """What a step sees, what counts as large, and the unit."""
    samples = recipe.samples_per_step
    if samples is None:
        raise Lacks("the size of a step: batch_size, grad_accumulation and n_devices in the recipe")
    if recipe.seq_len is None:
        return samples, SAMPLES, "samples"
    return samples * recipe.seq_len, TOKENS, "tokens"
