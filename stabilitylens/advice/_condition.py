"""Conditions of the decision tree: a mapping from facts to what they must be.

``{layers: "> very_deep", task: [lm, speech]}`` holds where both hold. A value is compared: by an operator with a
threshold of thresholds.yaml, as one of a list, or as itself; a fact that is itself a list must contain it. ``any``
takes a list of conditions. What is not known fulfils nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stabilitylens.advice._data import thresholds

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}


@dataclass(frozen=True)
class Decision:
    """One fact that decided.

    Attributes:
        fact: its name; value: what it is.
        test: an operator, or ``is``.
        threshold: what it was compared with.
        heuristic: whether no source draws the line there.
        why: where the line comes from; empty where nothing was compared by size.
    """

    fact: str
    value: Any
    test: str
    threshold: Any
    heuristic: bool = False
    why: str = ""

    def __str__(self) -> str:
        fact = self.fact.replace("_", " ")
        if self.test == "is":
            return f"{fact}: {'yes' if self.value is True else self.value}"
        line = f"{fact} {_number(self.value)} {self.test} {_number(self.threshold)}"
        return f"{line} (heuristic: {self.why})" if self.heuristic else f"{line} ({self.why})"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def holds(when: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Decision] | None:
    """What decided, if the condition holds; None if it does not."""
    found: list[Decision] = []
    for fact, wanted in when.items():
        decided = _any(wanted, facts) if fact == "any" else _test(fact, wanted, facts[fact])
        if decided is None:
            return None
        found += decided
    return found


def facts_of(when: Mapping[str, Any]) -> set[str]:
    """The facts that a condition asks for."""
    names = {fact for fact in when if fact != "any"}
    return names.union(*(facts_of(part) for part in when.get("any", ())))


def _any(parts: list[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[Decision] | None:
    """The decisions of every part that holds."""
    found = [decided for part in parts if (decided := holds(part, facts)) is not None]
    return [decision for decided in found for decision in decided] if found else None


def _test(fact: str, wanted: Any, value: Any) -> list[Decision] | None:
    if value is None:
        return None
    compare, _, name = str(wanted).partition(" ")
    if compare in OPERATORS:
        line = thresholds()[name]
        if not OPERATORS[compare](value, line["value"]):
            return None
        return [Decision(fact, value, compare, line["value"], line["heuristic"], line["why"])]
    met = wanted in value if isinstance(value, tuple) else value in wanted if isinstance(wanted, list) else value == wanted
    return [Decision(fact, value, "is", tuple(wanted) if isinstance(wanted, list) else wanted)] if met else None
