from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._recipe import advised_warm_up, stated, warm_up_of

#: heuristic: runs shorter than this many advised warm-ups, such as fine-tuning, cannot spend one
RUNS = 10


@rule(code="SL602", needs=("recipe",), since="0.1.0")
def warm_up_too_short(evidence: Evidence) -> list[Fired]:
    """The warm-up lasts until Adam's second moment has been measured.

    ## What it flags
    An optimizer of Adam's kind with fewer than 2/(1−β2) steps of warm-up, which is 40 for β2 = 0.95, 200 for 0.99 and
    2,000 for 0.999: a warning. It is information where the whole run is shorter than ten times that. RAdam, whose steps
    start small by design, is left out.

    ## Why it matters
    Adam divides by a running mean over 1/(1−β2) steps. Before that many have passed, the mean rests on a few
    gradients, and the steps are as noisy as those.

    ## Evidence
    - Ma and Yarats find that a linear warm-up over 2/(1−β2) steps does as well as tuned ones:
      <https://arxiv.org/abs/1910.04209>.
    - Liu et al. relate the need for warm-up to the variance of that mean in the first steps:
      <https://arxiv.org/abs/1908.03265>.

    The allowance for short runs is heuristic.

    ## Example
    The warm-up is 100 steps, fewer than the 2,000 advised for β2 = 0.999.

    ## Known false positives
    - Fine-tuning at a small learning rate, where the first steps cannot do much harm.

    ## Remedy
    A longer warm-up, or a smaller β2: with 0.95 a warm-up of 40 steps is enough for the moment.
    """
    recipe = stated(evidence)
    steps, wanted = warm_up_of(recipe), advised_warm_up(recipe)
    if steps >= wanted or "radam" in (recipe.optimizer or "").lower():
        return []
    short = recipe.total_steps is not None and recipe.total_steps < RUNS * wanted
    message = f"the warm-up is {steps:,} steps, fewer than the {wanted:,} advised for β2 = {recipe.beta2:g}"
    if short:
        message += f", in a run of {recipe.total_steps:,}"
    return [Fired("info" if short else "warning", message, float(steps), float(wanted), confidence=0.4 if short else 0.6)]
