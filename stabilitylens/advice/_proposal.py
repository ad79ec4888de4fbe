"""Proposal: the smallest change to a model and its recipe that clears what an audit found."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from stabilitylens.advice._document import Advisory
from stabilitylens.anatomy import Anatomy
from stabilitylens.findings import Finding
from stabilitylens.recipe import Recipe


@dataclass(frozen=True)
class Change:
    """One change.

    Attributes:
        say: what to do; costs: what that costs.
        clears: codes of the rules whose findings it is for.
        fields: what changes, as ``{"recipe.warmup_steps": [0, 2000]}``: before and after.
    """

    say: str
    costs: str
    clears: tuple[str, ...]
    fields: dict[str, tuple[Any, Any]]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        fields = {name: list(values) for name, values in self.fields.items()}
        return {"say": self.say, "costs": self.costs, "clears": list(self.clears), "fields": fields}


@dataclass(frozen=True)
class Proposal(Advisory):
    """What to change in a model that was audited; ``str(proposal)`` is the text.

    Attributes:
        model: its name.
        before, after: every static rule's verdict before and after ``changes``.
        changes: the fewest and least invasive changes after which no warning and no error is left.
        optional: further ones, after which no information is left either.
        left: what no known change clears, of those that fired at the start.
        anatomy, recipe: after ``changes``.
    """

    model: str
    before: tuple[Finding, ...]
    after: tuple[Finding, ...]
    changes: tuple[Change, ...]
    optional: tuple[Change, ...]
    left: tuple[Finding, ...]
    anatomy: Anatomy
    recipe: Recipe | None

    template = "proposal"

    @property
    def headline(self) -> str:
        """What is needed, in one sentence."""
        if self.changes:
            said = "; ".join(change.say for change in self.changes)
            return f"{self.model}: {len(self.changes)} change{'s' if len(self.changes) > 1 else ''}: {said}"
        if any(finding.severity != "info" for finding in self.left):
            return f"{self.model}: no change is known that clears {', '.join(sorted({f.code for f in self.left}))}"
        judged = sum(finding.verdict != "not_evaluated" for finding in self.before)
        if not judged:
            return f"{self.model}: no rule had what it needs, so there is nothing to change for"
        blind = len(self.before) - judged
        unseen = f"; {blind} could not be evaluated" if blind else ""
        return f"{self.model}: no change is needed: no warning and no error of {judged} rules{unseen}"

    @property
    def fired(self) -> list[Finding]:
        """What fired before any change."""
        return [finding for finding in self.before if finding.verdict == "fired"]

    def to_dict(self) -> dict[str, Any]:
        """As docs/json.md describes it."""
        return {
            "headline": self.headline,
            "model": self.model,
            "changes": [change.to_dict() for change in self.changes],
            "optional": [change.to_dict() for change in self.optional],
            "left": [finding.to_dict() for finding in self.left],
            "before": [finding.to_dict() for finding in self.before],
            "after": [finding.to_dict() for finding in self.after],
            "anatomy": self.anatomy.to_dict(),
            "recipe": self.recipe.to_dict() if self.recipe is not None else None,
        }

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.headline)}</p>"
