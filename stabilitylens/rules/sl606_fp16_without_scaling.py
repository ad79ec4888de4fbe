from collections.abc import Iterator

from stabilitylens.recipe import Recipe
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._recipe import stated

#: smallest positive number of fp16, 2^-24: an ε below it is zero there
FP16_SMALLEST = 2.0**-24


@rule(code="SL606", needs=("recipe",), since="0.1.0")
def fp16_without_scaling(evidence: Evidence) -> list[Fired]:
    """Training in fp16 scales its loss, and its ε is a number that fp16 has.

    ## What it flags
    - A forward in fp16 without a gradient scaler: an error.
    - Parameters that are kept in fp16 together with an ε below 6e-8, which is zero in fp16: an error.

    Activations near the largest number of fp16 are residual-growth's to find.

    ## Why it matters
    Gradients below 6e-8 are zero in fp16, and many are. A scaler multiplies the loss so that they are not, and skips the
    steps on which that overflows. An ε that is zero makes Adam divide by zero wherever no gradient came.

    ## Evidence
    - Micikevicius et al. introduce loss scaling for this reason: <https://arxiv.org/abs/1710.03740>.
    - Kalamkar et al. show that bfloat16, with float32's range, trains without: <https://arxiv.org/abs/1905.12322>.

    The smallest number of fp16 is 2⁻²⁴, about 6e-8; it follows from the format.

    ## Example
    The forward computes in fp16, and the loss is not scaled.

    ## Known false positives
    - Loops that multiply the loss by a constant of their own.

    ## Remedy
    bfloat16, which needs no scaler. Where only fp16 is there: a gradient scaler, and parameters in float32.
    """
    recipe = stated(evidence)
    if recipe.precision is None and recipe.param_precision is None:
        raise Lacks("what the forward computes in: precision in the recipe")
    if recipe.precision == "fp16" and recipe.loss_scaling is None and not _scaled(evidence):
        raise Lacks("whether the loss is scaled: loss_scaling in the recipe")
    return list(_faults(recipe))


def _scaled(evidence: Evidence) -> bool:
    return evidence.run is not None and evidence.run.why_missing("loss_scale") is None


def _faults(recipe: Recipe) -> Iterator[Fired]:
    if recipe.precision == "fp16" and recipe.loss_scaling is False:
        yield Fired("error", "the forward computes in fp16, and the loss is not scaled", confidence=0.9)
    if recipe.param_precision == "fp16" and recipe.eps is not None and recipe.eps < FP16_SMALLEST:
        message = f"parameters are kept in fp16, where ε = {recipe.eps:g} is zero"
        yield Fired("error", message, recipe.eps, FP16_SMALLEST, confidence=0.9)
