"""The suspect fp16-overflow."""

from __future__ import annotations

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: the largest number of float16, and how near to it is near: the margin of the rule fp16-without-scaling
LARGEST, NEAR = 65504.0, 8.0
#: how far back a sample of an activation counts, in steps. *Heuristic*.
LATELY = 50


@suspect()
def fp16_overflow(case: Case) -> Opinion:
    """A number left the range of float16, 65,504 at most, in the forward or the backward.

    ## Speaks for it
    - A loss scale that falls, or skipped steps, at the incident; a loss or a norm that is not finite.
    - `resid_absmax` within a factor of 8 of 65,504, or `nonfinite_count` above zero. The first layer with an infinite
      value is the culprit, not the first with a NaN, which is one norm later.

    ## Speaks against it
    - bf16 or fp32, which overflow at 3 × 10^38.

    ## Evidence
    - Dynamic loss scaling and its skipped steps: <https://arxiv.org/abs/1710.03740>.
    - Overflow of a named layer's activations: <https://github.com/huggingface/transformers/pull/10956>.

    ## Settle it
    Repeat the steps around the incident in bf16 or fp32 from the last checkpoint.

    ## Remedy
    bf16. Where there is none: norm statistics in fp32, a lower scale growth, and the layer that grows looked into.
    """
    scales, recipe, step = Scales(0.05), case.recipe, case.incident.start_step
    precision = recipe.precision or ""
    scales.con(DECISIVE, f"the forward runs in {precision}", precision in ("bf16", "fp32"))
    scales.pro(WEAK, "the forward runs in fp16", precision == "fp16")
    falls = [each for each in case.context.of("loss_scale") if each.size is not None and each.size < 1]
    scales.pro_first(FAIR, falls)
    skipped = case.context.of("steps_skipped")
    scales.pro_first(FAIR, skipped)
    scale = case.scale
    scales.pro(STRONG, f"they were skipped at a loss scale of {scale or 0:g}: a scaler skips where a gradient is not finite", skipped and scale)
    scales.con(WEAK, "the log has neither a loss scale nor a precision of fp16", "loss_scale" not in case.run.series and precision != "fp16")
    largest = case.highest_lately("resid_absmax", LATELY)
    scales.pro(FAIR, f"resid_absmax reached {largest or 0:.3g}, of {LARGEST:,.0f}", largest is not None and largest > LARGEST / NEAR)
    scales.con(FAIR, f"resid_absmax was {largest or 0:.3g} at most, of {LARGEST:,.0f}", largest is not None and largest < LARGEST / NEAR**2)
    broken = [m for m in case.context.of_metric("nonfinite_count", "resid_absmax") if m.after > 0 and (m.metric == "nonfinite_count" or m.after > LARGEST)]
    scales.pro_first(STRONG, broken)
    scales.pro(FAIR, f"{case.incident.metric} was not finite", case.nonfinite and "loss_scale" in case.run.series)
    scales.con(FAIR, "loss and gradients stayed finite", not case.nonfinite and not falls and not skipped and not broken)
    return scales.opinion(f"Repeat the steps up to {step} from the last checkpoint in bf16, or in fp32 if there is no bf16.")
