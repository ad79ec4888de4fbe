from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import at, number, per_layer
from stabilitylens.rules._track import RECENT, levels, recorded, sampled, track
from stabilitylens.rules._trend import GREW, rising
from stabilitylens.run import Run, Series

#: magnitude from which Sun et al. call an activation massive (https://arxiv.org/abs/2402.17762)
LARGE = 100.0
#: 1,000 times the median is theirs; the RMS of normal activations is 1.48 medians
RATIO = 1000.0 / 1.48


@rule(code="SL502", needs=("resid_absmax", "resid_rms"), since="0.1.0", evidence_scale=7e10)
def massive_activations(evidence: Evidence) -> list[Fired]:
    """No entry of the stream is hundreds of times larger than the others.

    ## What it flags
    A block after which `resid_absmax` is past 100 and 676 times `resid_rms`: information. It is a warning where it at
    least doubled in this run and is still rising, or where the forward computes in fp16 or fp8.

    ## Why it matters
    A few entries, at the first token or at delimiters, act as a bias that attention parks its weight on. That is how
    many healthy models work. They cost range: in fp16 and fp8 they overflow, or everything else is rounded to
    nothing beside them.

    ## Evidence
    - Sun et al. find such entries in many models to 70B, define them as past 100 and about 1,000 times the median,
      and remove the need for them with a bias in attention: <https://arxiv.org/abs/2402.17762>.
    - Xiao et al. describe the attention sinks that go with them: <https://arxiv.org/abs/2309.17453>.

    The recording has the RMS, not the median; for normal activations it is 1.48 medians. Massive entries raise the RMS
    itself in short batches, so this rule misses some.

    ## Example
    `resid_absmax` of layer 3 is 1,420, which is 890 times its `resid_rms`.

    ## Known false positives
    - Nearly all large trained models have them, hence information.

    ## Remedy
    For quantisation and fp8: attention with a learned sink or bias, or gated attention. In fp16: bf16.
    """
    run = recorded(evidence)
    top, rms = sampled(run, "resid_absmax", RECENT), sampled(run, "resid_rms", RECENT)
    if top.values.ndim != 2 or top.values.shape[1:] != rms.values.shape[1:]:
        raise Lacks("resid_absmax and resid_rms of the same blocks")
    narrow = evidence.recipe is not None and evidence.recipe.precision in ("fp16", "fp8")
    return per_layer(_massive(run, top, rms, narrow))


def _massive(run: Run, top: Series, rms: Series, narrow: bool) -> Iterator[Fired]:
    with np.errstate(all="ignore"):
        high, ratio = levels(top), levels(top) / levels(rms)
    for layer in np.flatnonzero((high > LARGE) & (ratio > RATIO)).tolist():
        block = track(run, top, (layer,))
        growing = block.level >= GREW * block.early and rising(block)
        where = replace(block.since(LARGE), layer=layer)
        why = " and is still rising" if growing else " in 16 bit or less" if narrow else ""
        yield Fired(
            "warning" if growing or narrow else "info",
            f"resid_absmax of {at(where)} is {number(block.level)}, which is {number(float(ratio[layer]))} times its "
            f"resid_rms{why}",
            observed=float(ratio[layer]), threshold=RATIO, where=where, confidence=0.6,
        )
