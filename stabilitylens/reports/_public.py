"""Public scores of a run's loss, to stand beside its incidents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stabilitylens.reports._words import number

if TYPE_CHECKING:
    from stabilitylens.report import Subject


def olmo_score(subject: Subject) -> float | None:
    """OLMo's spike score of the loss; None where there is no loss, or too little of it."""
    from stabilitylens.incidents import spike_score  # an audit needs no detectors

    return spike_score(subject.loss) if subject.loss is not None else None


def olmo_told(subject: Subject) -> str | None:
    """The same as a sentence."""
    score = olmo_score(subject)
    if score is None:
        return None
    return f"OLMo's spike score of the loss, which counts points and not events: {number(100 * score)} %."
