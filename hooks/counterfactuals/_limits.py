"""What counts as the incident: above which loss, and for a spike of the gradient above which norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median

from stabilitylens.hooks.blackbox.alarm import ATTENTION_LOGITS
from stabilitylens.hooks.blackbox.everybody import Recorded
from stabilitylens.hooks.counterfactuals._trial import Course
from stabilitylens.incidents._online import LEAST, loss_limit, norm_limit
from stabilitylens.rules._logits import LOGIT_HIGH

#: a norm that is measured here and the recorded one are the same if they differ by less than this share. *Heuristic*:
#: both are rounded otherwise, and a norm of a part of the parameters differs by more.
SAME = 0.02
#: from so many steps on their mean is judged too. *Heuristic*.
SEVERAL = 4


@dataclass(frozen=True)
class Limits:
    """What a step may not exceed.

    Attributes:
        loss: of a step; infinite where only a loss that is not finite counts.
        level: of the mean of several steps after the incident. *Heuristic*: half as far from the median before, as a factor, as that
            of a single step, for a mean scatters less, and a run that stays up has not been cured.
        norm: of the gradient; None where the gradient is not what went wrong.
        clipped: whether it is the norm that the optimizer saw.
        words: where the limit of the loss comes from.
        logit: largest attention logit from the incident's step on; None where that is not what went wrong.
        last: the incident's step.
    """

    loss: float
    level: float
    norm: float | None
    clipped: bool
    words: str
    logit: float | None = None
    last: int = 0

    def bad(self, course: Course, step: int) -> bool:
        """Whether a step of a trial is an incident."""
        loss = course.losses[step]
        if not math.isfinite(loss) or loss > self.loss:
            return True
        if self._sharp(course, step):
            return True
        return self.norm is not None and not self._norm(course, step) <= self.norm

    def _sharp(self, course: Course, step: int) -> bool:
        """Before the incident's step logits were on their way up already, and no change undoes that at once."""
        return self.logit is not None and step >= self.last and not course.logits.get(step, math.nan) <= self.logit

    def _norm(self, course: Course, step: int) -> float:
        return (course.stepped if self.clipped else course.norms)[step]

    def against(self, course: Course, last: int) -> str:
        """Why a trial has not averted the incident of step ``last``, in a few words; empty where it has.

        No step may be one, the loss has to stay down after it, and the weights have to be finite at the end.
        """
        first = next((step for step in course.losses if self.bad(course, step)), None)
        after = [loss for step, loss in course.losses.items() if step > last]
        if first is not None:
            high = not math.isfinite(course.losses[first]) or course.losses[first] > self.loss
            other = ("largest attention logit", course.logits[first]) if self._sharp(course, first) else None
            what, value = ("loss", course.losses[first]) if high else other or ("gradient norm", self._norm(course, first))
            return f"{what} {value:.4g} at step {first}"
        if len(after) >= SEVERAL and fmean(after) > self.level:
            return "the loss stays up"
        return "" if course.finite else "weights that are not finite at the end"


def limits_of(evidence: Recorded, baseline: Course) -> Limits:
    """The limits of an incident, from the steps before it that were recorded."""
    losses = before(evidence, "loss")
    at = evidence.scalar(evidence.step, "loss")
    limit, words = _between(losses, at, loss_limit(losses), "spike" in evidence.manifest.kinds)
    norm, clipped = _norm_limit(evidence, baseline)
    middle = median(losses) if losses else 0.0
    logit = LOGIT_HIGH if ATTENTION_LOGITS in evidence.manifest.kinds else None
    words += f", and attention logits of at most {logit:g} from step {evidence.step} on" if logit is not None else ""
    return Limits(limit, math.sqrt(middle * limit) if middle > 0 else math.inf, norm, clipped, words, logit, evidence.step)


def before(evidence: Recorded, name: str) -> list[float]:
    """What was recorded at the kept steps before the incident, as far as it is finite."""
    values = [evidence.scalar(step, name) for step in evidence.steps if step < evidence.step]
    return [v for v in values if v is not None and math.isfinite(v)]


def _between(past: list[float], at: float | None, known: float, it: bool) -> tuple[float, str]:
    """The limit of a series with values before the incident and one at it; ``known`` is what the detector makes of those before.

    ``it`` says that this series is what went wrong.
    """
    high = at is not None and at > 0 and (not math.isfinite(at) or at > known)
    calm = max((v for v in past if it and (at is None or not v >= at)), default=-math.inf)  # it raised no alarm, so it is none now
    if math.isfinite(known) and (high or not it):
        return max(known, calm), f"the limit of the {len(past)} steps before that were kept"
    middle = median(past) if past else 0.0
    if at is not None and math.isfinite(at) and at > middle > 0:
        words = f"halfway, as a factor, from the median before, {middle:.3g}, to the {at:.3g} of the incident"
        return max(math.sqrt(middle * at), calm), words
    return math.inf, f"no limit: fewer than {LEAST} steps before were kept, so only a value that is not finite counts"


def _norm_limit(evidence: Recorded, baseline: Course) -> tuple[float | None, bool]:
    """The limit of the gradient norm, where the norm is what went wrong, and whether it is that which the optimizer saw.

    The recorded norms before the incident where they are what is measured here; else the baseline's own.
    """
    kinds, last = evidence.manifest.kinds, evidence.step
    loss = evidence.scalar(last, "loss")
    if "grad_spike" not in kinds and not ("nonfinite" in kinds and loss is not None and math.isfinite(loss)):
        return None, False
    name = "grad_norm" if evidence.scalar(last, "grad_norm") is not None else "grad_norm_clipped"
    clipped = name != "grad_norm"
    own = baseline.stepped if clipped else baseline.norms
    recorded, here = evidence.scalar(last, name), own.get(last, math.nan)
    agree = recorded is not None and (abs(recorded - here) <= SAME * abs(here) or not math.isfinite(recorded) and not math.isfinite(here))
    past = before(evidence, name) if agree else [n for step, n in own.items() if step < last and math.isfinite(n)]
    return _between(past, here, norm_limit(past), True)[0], clipped
