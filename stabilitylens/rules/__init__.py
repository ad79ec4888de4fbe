"""One rule, one file. ``judge(evidence)`` runs them all: a verdict of each, fired, clear or not evaluated."""

from stabilitylens.rules._rule import RULES, Evidence, Fired, Lacks, Rule, judge, rule

__all__ = ["RULES", "Evidence", "Fired", "Lacks", "Rule", "judge", "rule"]
