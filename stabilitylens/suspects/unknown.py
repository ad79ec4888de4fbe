"""The suspect unknown."""

from __future__ import annotations

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import Opinion, suspect

#: what is left for an unknown cause where no other has anything for it. *Heuristic*: a certain suspect leaves nothing.
LEFT = 0.6


@suspect(last=True)
def unknown(case: Case) -> Opinion:
    """None of the known causes has enough evidence; what is excluded is said.

    ## Speaks for it
    - No other suspect is likely. Its score is 0.6 of what the likeliest leaves, so it comes first where none reaches 0.375.

    ## Speaks against it
    - A suspect with strong evidence.

    ## Evidence
    - The cause of a spike often lies many steps earlier than the batch at the spike, and in what was not recorded: a run
      with a lens, sampled more often, sees more.

    ## Settle it
    Go on from the last checkpoint with a lens that samples every step.

    ## Remedy
    Roll back, skip some hundred batches, and keep the record of the second time.
    """
    ranked = sorted(case.others, key=lambda name: -case.others[name].score)
    best = case.others[ranked[0]].score if ranked else 0.0
    excluded = [name for name, opinion in case.others.items() if opinion.excluded]
    told = [f"excluded: {', '.join(excluded)}"] if excluded else []
    told += [*case.context.cannot_show[:2]]
    against = (f"{ranked[0]} has evidence: {case.others[ranked[0]].evidence_for[0]}",) if ranked and case.others[ranked[0]].evidence_for and best > LEFT * (1 - best) else ()
    experiment = f"From the last checkpoint before step {case.incident.start_step}, run on over it with stabilitylens.attach(…, every=1)."
    return Opinion(round(LEFT * (1 - best), 3), tuple(told), against, experiment)
