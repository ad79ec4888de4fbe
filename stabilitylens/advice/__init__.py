"""Advice before training: a decision tree in data, and the smallest change that clears an audit's findings.

``topics/`` holds one question a file (which norm, where, …) with its branches in order: the first whose conditions hold
is the recommendation. ``scenarios.yaml``, ``thresholds.yaml`` and ``sources.yaml`` are what the branches refer to, and
``remedies.yaml`` maps a rule's finding to changes of an anatomy or a recipe.
"""

from stabilitylens.advice._advice import Advice, Alternative, Choice, Scenario
from stabilitylens.advice._condition import Decision
from stabilitylens.advice._proposal import Change, Proposal
from stabilitylens.advice._situation import Situation
from stabilitylens.advice._source import Source

__all__ = ["Advice", "Alternative", "Change", "Choice", "Decision", "Proposal", "Scenario", "Situation", "Source"]
