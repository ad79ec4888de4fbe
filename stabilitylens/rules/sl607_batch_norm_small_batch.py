from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._placement import kinds_of, known
from stabilitylens.rules._recipe import stated

#: below this Wu and He see the error of BatchNorm grow (https://arxiv.org/abs/1803.08494)
SAMPLES = 16


@rule(code="SL607", needs=("anatomy",), since="0.1.0")
def batch_norm_small_batch(evidence: Evidence) -> list[Fired]:
    """BatchNorm sees enough samples on each device.

    ## What it flags
    BatchNorm with fewer than 16 samples on a device: a warning. Accumulating gradients does not help, for the
    statistics are those of one forward.

    ## Why it matters
    Mean and variance of a few samples are noise, which the model trains on and does not have at inference.

    ## Evidence
    - Wu and He find BatchNorm's error to grow as batches shrink, with 32 samples a device as the usual size, and
      GroupNorm's to stay: <https://arxiv.org/abs/1803.08494>.

    ## Example
    BatchNorm sees 2 samples on each device, fewer than 16.

    ## Known false positives
    - Statistics that are synchronised over devices, or frozen, as in detectors that start from a trained backbone.
    - Samples with many positions, as large feature maps, over which the statistics run too.

    ## Remedy
    GroupNorm, or LayerNorm. With BatchNorm kept: synchronise its statistics over the devices.
    """
    anatomy = known(evidence)
    if anatomy.norm_placement is None and not kinds_of(anatomy):
        raise Lacks("the kind of the norms")
    if "batchnorm" not in kinds_of(anatomy):
        return []
    recipe = stated(evidence)
    if recipe.batch_size is None:
        raise Lacks("the samples that a device sees: batch_size in the recipe")
    if recipe.batch_size >= SAMPLES:
        return []
    message = f"BatchNorm sees {recipe.batch_size} sample{'s' if recipe.batch_size != 1 else ''} on each device, fewer than {SAMPLES}"
    return [Fired("warning", message, float(recipe.batch_size), float(SAMPLES), confidence=0.7)]
