"""Growth of attention logits: what SL201 reports, and what lets other rules raise or lower their severity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stabilitylens.rules._layers import number
from stabilitylens.rules._rule import Evidence, Lacks
from stabilitylens.rules._track import Track, levels, sampled, track
from stabilitylens.rules._trend import held, rising
from stabilitylens.run import INITIAL, Run

#: Kimi K2 clips the query and key weights of a head whose largest logit passes this (https://arxiv.org/abs/2507.20534)
LOGIT_WATCHED = 100.0
#: heuristic: ten times that; softmax rows are one-hot long before
LOGIT_HIGH = 1e3
#: heuristic: in the range where training is known to fail, under the 50,000 reported for ViT (https://arxiv.org/abs/2302.05442)
LOGIT_EXTREME = 1e4


@dataclass(frozen=True)
class Growth:
    """A head whose largest logit is past the watched level and got there, or is going on, in this run."""

    track: Track
    rising: bool

    @property
    def level(self) -> float:
        """The present level."""
        return self.track.level


def logit_growth(run: Run) -> list[Growth]:
    """Heads with growing attention logits, the largest first.

    Past ``LOGIT_WATCHED`` a head must still be rising; past ``LOGIT_HIGH`` it is enough that it grew in
    this run and has not come down again. A run that passes 100 and decays is therefore left alone.

    Raises:
        stabilitylens.rules.Lacks: ``max_attn_logit`` is missing or too short, or the run is one sample before training.
    """
    if run.format == INITIAL:
        raise Lacks("a recorded run: one sample at initialisation shows no growth")
    series = sampled(run, "max_attn_logit")
    level = levels(series)
    grown = []
    for index in np.argwhere(level > LOGIT_WATCHED).tolist():
        head = track(run, series, tuple(index))
        going_up = rising(head)
        if going_up or (head.level > LOGIT_HIGH and held(head)):
            grown.append(Growth(head, going_up))
    return sorted(grown, key=lambda g: -g.level)


def growth_seen(evidence: Evidence) -> list[Growth] | None:
    """Heads with growing attention logits; None where no run says."""
    try:
        return logit_growth(evidence.run) if evidence.run is not None else None
    except Lacks:
        return None


def no_growth(run: Run) -> str:
    """A sentence for a run in which no head's logits grew; a spike that went again is named."""
    peak = float(np.nanmax(run["max_attn_logit"].values))
    spike = f", though single samples reached {number(peak)}" if peak > LOGIT_WATCHED else ""
    return f"no head's max_attn_logit stayed past {LOGIT_WATCHED:.0f} in this run{spike}"
