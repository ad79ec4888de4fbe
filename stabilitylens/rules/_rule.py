"""What a rule is, what it is given, and how all of them run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from stabilitylens.anatomy import Anatomy
from stabilitylens.findings import SEVERITIES, Finding, Severity, Where
from stabilitylens.recipe import Recipe
from stabilitylens.registry import Registry, page_of
from stabilitylens.run import INITIAL, Run

#: heuristic: a model this many times larger than those of a rule's evidence is told so
BEYOND = 5.0


class Lacks(Exception):
    """Raised by a rule that cannot be evaluated; its message says what is missing."""


@dataclass(frozen=True)
class Evidence:
    """What a rule may look at; a static audit has no run."""

    name: str
    anatomy: Anatomy | None = None
    recipe: Recipe | None = None
    run: Run | None = None


@dataclass(frozen=True)
class Fired:
    """What a rule returns when it fires; code, name, remedy and sources come from its page."""

    severity: Severity
    message: str
    observed: float | None = None
    threshold: float | None = None
    where: Where = field(default_factory=Where)
    confidence: float = 1.0


Check = Callable[[Evidence], list[Fired]]


@dataclass(frozen=True)
class Rule:
    """A rule: ``code`` and ``name`` (its file's), what it ``needs``, its ``page`` and its check.

    Attributes:
        needs: ``anatomy``, ``recipe`` or a series of the run, as ``max_attn_logit``.
        evidence_scale: parameters of the largest model in its evidence, where that is known.
        initial: whether one sample at initialisation is enough for it.
    """

    code: str
    name: str
    needs: tuple[str, ...]
    since: str
    page: str
    check: Check
    evidence_scale: float | None = None
    initial: bool = False

    @property
    def static(self) -> bool:
        """Whether it needs no run."""
        return set(self.needs) <= {"anatomy", "recipe"}

    def section(self, title: str) -> str:
        """The text under a heading of the page, empty where the page has none."""
        found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", self.page, re.M | re.S)
        return found[1].strip() if found else ""

    @property
    def summary(self) -> str:
        """The first line of the page."""
        return self.page.splitlines()[0]

    @property
    def sources(self) -> tuple[str, ...]:
        """Every link of the page, in order."""
        return tuple(dict.fromkeys(re.findall(r"https?://[^\s)>\]]+", self.page)))


RULES: Registry[Rule] = Registry("stabilitylens.rules")


def rule(
    *, code: str, needs: Iterable[str], since: str, evidence_scale: float | None = None, initial: bool = False
) -> Callable[[Check], Check]:
    """Register a rule under the name of its function (underscores become hyphens); see :class:`Rule`."""

    def register(check: Check) -> Check:
        name, page = check.__name__.replace("_", "-"), page_of(check)
        RULES.add(code, Rule(code, name, tuple(needs), since, page, check, evidence_scale, initial), check)
        return check

    return register


def _missing(need: str, evidence: Evidence) -> str | None:
    if need in ("anatomy", "recipe"):
        known = evidence.anatomy if need == "anatomy" else evidence.recipe
        return None if known is not None else f"the {need} is not known"
    if evidence.run is None:
        return f"{need} needs a recorded run, and a static audit has none"
    return evidence.run.why_missing(need)


def verdicts(member: Rule, evidence: Evidence) -> list[Finding]:
    """One rule's findings: one or more that fired, or a single one that is clear or not evaluated."""
    blank = Finding(evidence.name, member.code, member.name, "clear", message=member.summary, sources=member.sources)
    lacks = [m for m in (_missing(need, evidence) for need in member.needs) if m]
    if not lacks and evidence.run is not None and evidence.run.format == INITIAL and not (member.initial or member.static):
        lacks = ["a recorded run: one sample at initialisation shows no growth"]
    if not lacks:
        try:
            fired = member.check(evidence)
        except Lacks as missing:
            lacks = [str(missing)]
    if lacks:
        return [replace(blank, verdict="not_evaluated", lacks="; ".join(lacks))]
    if not fired:
        return [blank]
    measured = evidence.run is not None and evidence.run.format == INITIAL
    return [
        replace(
            blank, verdict="fired", severity=f.severity, confidence=f.confidence,
            where=replace(f.where, steps=None) if measured else f.where,
            observed=f.observed, threshold=f.threshold, message=f.message + _scales(member, evidence),
            remedy=member.section("Remedy"),
        )
        for f in fired
    ]


def _scales(member: Rule, evidence: Evidence) -> str:
    """A clause where the model is far larger than those of the rule's evidence; else nothing."""
    size = evidence.anatomy.n_parameters if evidence.anatomy is not None else None
    if size is None or member.evidence_scale is None or size < BEYOND * member.evidence_scale:
        return ""
    return f"; the evidence is at {in_words(member.evidence_scale)} parameters, this model has {in_words(size)}"


def in_words(count: float) -> str:
    """E.g. ``8.03 billion``, ``124 million``."""
    unit, word = next(((u, w) for u, w in ((1e12, "trillion"), (1e9, "billion")) if count >= u), (1e6, "million"))
    return f"{count / unit:.3g} {word}"


def judge(evidence: Evidence, *, static: bool | None = None, ask: Callable[[Rule, Evidence], list[Finding]] = verdicts) -> list[Finding]:
    """Every rule's verdict, those that fired first and by severity.

    Args:
        evidence: anatomy, recipe and run, as far as they are known.
        static: True for only the rules that judge a model before training: those that need no run, and where
            there is a run of one sample at initialisation those that can be judged by it. None for all.
        ask: asks one rule; another one may stand in for it, as where a rule that fails must cost only itself.
    """
    measured = evidence.run is not None and evidence.run.format == INITIAL
    members = [m for m in RULES if not static or m.static or (m.initial and measured)]
    found = [f for m in members for f in ask(m, evidence)]
    order = {"fired": 0, "not_evaluated": 1, "clear": 2}
    return sorted(found, key=lambda f: (order[f.verdict], -SEVERITIES.get(f.severity or "info", 0), f.code))
