"""One cause, one file. ``suspects_of(subject)`` says how likely each is to have caused a run's incidents."""

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._judge import judge_case, suspects_of
from stabilitylens.suspects._suspect import SUSPECTS, Opinion, Scales, Suspect, suspect

__all__ = ["SUSPECTS", "Case", "Opinion", "Scales", "Suspect", "judge_case", "suspect", "suspects_of"]
