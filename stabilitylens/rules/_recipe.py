"""What rules ask of a recipe: the optimizer's kind, how long its second moment remembers, and the warm-up."""

from __future__ import annotations

from stabilitylens.recipe import Recipe
from stabilitylens.rules._rule import Evidence, Lacks

#: warm-up in units of 1/(1-β2) steps, after Ma and Yarats (https://arxiv.org/abs/1910.04209)
WARM_UP = 2.0
#: optimizers of Adam's kind: the others have no β2 or use it otherwise
ADAM = ("adam", "lamb")


def stated(evidence: Evidence) -> Recipe:
    """The recipe of the evidence.

    Raises:
        Lacks: there is none.
    """
    if evidence.recipe is None:
        raise Lacks("the recipe is not known")
    return evidence.recipe


def check_adam(recipe: Recipe) -> None:
    """Nothing where the optimizer may be of Adam's kind.

    Raises:
        Lacks: it is not.
    """
    if recipe.optimizer is not None and not any(kind in recipe.optimizer.lower() for kind in ADAM):
        raise Lacks(f"a second moment: {recipe.optimizer} does not keep one as Adam does")


def beta2_of(recipe: Recipe) -> float:
    """The decay of Adam's second moment.

    Raises:
        Lacks: it is not known, or the optimizer is not of Adam's kind.
    """
    check_adam(recipe)
    if recipe.beta2 is None:
        raise Lacks("the optimizer's beta2 is not known")
    if not 0 <= recipe.beta2 < 1:
        raise Lacks(f"a beta2 from 0 to 1; it is {recipe.beta2:g}")
    return recipe.beta2


def advised_warm_up(recipe: Recipe) -> int:
    """Steps of warm-up that suit Adam's second moment: 40, 200 and 2,000 for β2 = 0.95, 0.99 and 0.999.

    Raises:
        Lacks: as :func:`beta2_of`.
    """
    return round(WARM_UP / (1 - beta2_of(recipe)))


def warm_up_of(recipe: Recipe) -> int:
    """The steps of warm-up.

    Raises:
        Lacks: not known.
    """
    if recipe.warmup_steps is None:
        raise Lacks("the steps of warm-up are not known")
    return recipe.warmup_steps
