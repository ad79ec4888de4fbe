"""Advice: what is recommended for a plan, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from stabilitylens.advice._condition import Decision
from stabilitylens.advice._document import Advisory
from stabilitylens.advice._situation import Situation
from stabilitylens.advice._source import Source
from stabilitylens.anatomy import Anatomy
from stabilitylens.findings import Finding
from stabilitylens.recipe import Recipe


@dataclass(frozen=True)
class Alternative:
    """What was not recommended, and why."""

    value: str
    title: str
    why: str
    sources: tuple[Source, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"value": self.value, "title": self.title, "why": self.why, "sources": [s.to_dict() for s in self.sources]}


@dataclass(frozen=True)
class Choice:
    """The answer to one question.

    Attributes:
        topic: e.g. ``norm``; heading: the question for a person.
        value: the answer for a program, ``rmsnorm``; title: for a person.
        strength: of the evidence: ``strong`` (a proof or several groups), ``moderate`` (one careful account, or common
            practice with a reason), ``weak`` (small, recent or contested), or ``heuristic``.
        scale_note: said where the plan is far larger than the models of the evidence; else empty.
        decided_by: the facts that led here; empty where nothing else applied.
    """

    topic: str
    heading: str
    value: str | float
    title: str
    why: str
    strength: str
    contradicts: str
    costs: str
    sources: tuple[Source, ...]
    decided_by: tuple[Decision, ...]
    rejected: tuple[Alternative, ...]
    scale_note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        parts = {name: [part.to_dict() for part in getattr(self, name)] for name in ("decided_by", "rejected", "sources")}
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | parts


@dataclass(frozen=True)
class Scenario:
    """One of the situations that people ask about, and that this plan is in, with the facts that put it there."""

    name: str
    title: str
    decided_by: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class Advice(Advisory):
    """Recommendations for a plan, and what our own audit says of them.

    ``str(advice)`` is the text; ``advice["norm"]`` the choice on a topic.

    Attributes:
        assumptions: what was not given and mattered, a sentence each.
        anatomy, recipe: the model and the recipe that the choices describe.
        findings: every static rule's verdict on those two: none is a warning or an error.
    """

    situation: Situation
    scenarios: tuple[Scenario, ...]
    choices: tuple[Choice, ...]
    assumptions: tuple[str, ...]
    anatomy: Anatomy
    recipe: Recipe
    findings: tuple[Finding, ...]

    template = "advice"

    def __getitem__(self, topic: str) -> Choice:
        for choice in self.choices:
            if choice.topic == topic:
                return choice
        raise KeyError(f"no advice on {topic!r}; there is on {', '.join(choice.topic for choice in self.choices)}")

    @property
    def headline(self) -> str:
        """The plan in a few words and where it stands."""
        names = ", ".join(scenario.name.replace("_", " ") for scenario in self.scenarios) or "between small and large"
        return f"{self.situation.title}: {names}"

    @property
    def fired(self) -> list[Finding]:
        """What our own rules note on this advice; information at most."""
        return [finding for finding in self.findings if finding.verdict == "fired"]

    def to_dict(self) -> dict[str, Any]:
        """As docs/json.md describes it."""
        return {
            "headline": self.headline,
            "situation": self.situation.to_dict(),
            "scenarios": [asdict(scenario) for scenario in self.scenarios],
            "choices": [choice.to_dict() for choice in self.choices],
            "assumptions": list(self.assumptions),
            "anatomy": self.anatomy.to_dict(),
            "recipe": self.recipe.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def _repr_html_(self) -> str:
        rows = "".join(f"<li><strong>{escape(c.heading)}</strong>: {escape(c.title)}</li>" for c in self.choices)
        return f"<p>{escape(self.headline)}</p><ul>{rows}</ul>"
