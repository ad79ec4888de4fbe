"""From an audited model to a proposal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stabilitylens.advice._change import State, apply
from stabilitylens.advice._proposal import Change, Proposal
from stabilitylens.advice._search import Found, after, fired, judged, search
from stabilitylens.anatomy import Anatomy
from stabilitylens.findings import Severity
from stabilitylens.recipe import Recipe


def propose(name: str, anatomy: Anatomy, recipe: Recipe | None) -> Proposal:
    """The smallest change after which no warning and no error fires, and what would clear the rest."""
    start = State(anatomy, recipe)
    needed = search(name, start, "warning")
    wished = search(name, needed.state, "info")
    before, last = judged(name, start), fired(judged(name, wished.state), "info")
    left = tuple(finding for finding in before if finding.verdict == "fired" and finding.code in last)
    return Proposal(
        name, tuple(before), tuple(judged(name, needed.state)), tuple(_changes(name, start, needed, "warning")),
        tuple(_changes(name, needed.state, wished, "info")), left, needed.state.anatomy, needed.state.recipe,
    )


def _changes(name: str, start: State, found: Found, level: Severity) -> Iterator[Change]:
    """Each change with what fires without it."""
    state, cleared = start, set(fired(judged(name, found.state), level))
    for option in found.chosen:
        changed = apply(state, option.remedy)
        assert changed is not None
        without, _ = after(start, [other for other in found.chosen if other is not option])
        clears = set(fired(judged(name, without), level)) - cleared
        fields = dict(_fields(state, changed, option.remedy))
        yield Change(option.remedy["say"], option.remedy["costs"], tuple(sorted(clears)), fields)
        state = changed


def _fields(old: State, new: State, remedy: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Each field that a remedy names, with its value before and after."""
    for part in ("anatomy", "recipe"):
        for field in remedy.get(part, {}):
            values = _value(old, part, field), _value(new, part, field)
            if values[0] != values[1]:
                yield f"{part}.{field}", values


def _value(state: State, part: str, field: str) -> Any:
    """Of the model as a whole, or the largest of its parts where those differ by nature."""
    if field == "alpha":
        return max((sub.alpha for sub in state.anatomy.sub_layers if sub.alpha is not None), default=None)
    if field == "attention_scale":
        return max((call.scale for call in state.anatomy.attention_calls if call.scale is not None), default=None)
    return getattr(getattr(state, part), field, None)
