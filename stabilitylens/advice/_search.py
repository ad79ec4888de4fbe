"""Search for the smallest change: sets of remedies by effort, each judged again by all static rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from stabilitylens.advice._change import State, apply
from stabilitylens.advice._data import remedies
from stabilitylens.findings import SEVERITIES, Finding, Severity
from stabilitylens.rules import Evidence, judge

#: rounds in which a change may bring up a finding that the next round clears, or leave one that a second change clears
ROUNDS = 4


@dataclass(frozen=True)
class Option:
    """A remedy of the table."""

    remedy: dict[str, Any]

    @property
    def effort(self) -> int:
        """How invasive it is."""
        return int(self.remedy["effort"])

    @property
    def computed(self) -> bool:
        """Whether a value depends on what other changes make of the model, so that it has to come after them."""
        values = [*self.remedy.get("anatomy", {}).values(), *self.remedy.get("recipe", {}).values()]
        return any(isinstance(value, str) and value.startswith("=") for value in values)


@dataclass(frozen=True)
class Found:
    """The best set so far.

    Attributes:
        chosen, state: the set, and what it makes of the model.
        left: findings that it leaves.
        brought_up: rules that cheaper sets made fire, or made lose their evidence.
    """

    chosen: list[Option]
    state: State
    left: int
    brought_up: frozenset[str] = frozenset()


def judged(name: str, state: State) -> list[Finding]:
    """Every static rule's verdict."""
    return judge(Evidence(name, state.anatomy, state.recipe), static=True)


def fired(findings: Sequence[Finding], level: Severity) -> list[str]:
    """The rule of each finding that fired at a level or above."""
    return [f.code for f in findings if f.verdict == "fired" and SEVERITIES[f.severity or "info"] >= SEVERITIES[level]]


def after(start: State, chosen: Iterable[Option]) -> tuple[State, list[Option]]:
    """The state after a set, and those of its changes that did something."""
    state, used = start, []
    for option in chosen:
        changed = apply(state, option.remedy)
        if changed is not None:
            state = changed
            used.append(option)
    return state, used


def search(name: str, start: State, level: Severity) -> Found:
    """The set that clears most of what fired at a level or above, with the least effort."""
    best = Found([], start, len(fired(judged(name, start), level)))
    for _ in range(ROUNDS):
        found = _settled(name, best.state, level)
        if not found.chosen:
            break
        best = Found([*best.chosen, *found.chosen], found.state, found.left)
    return best


def _settled(name: str, start: State, level: Severity) -> Found:
    """The best set of remedies for what fired, and for what cheaper sets bring up."""
    extra: frozenset[str] = frozenset()
    found = _try_all(name, start, level, extra)
    for _ in range(ROUNDS):
        if found.brought_up <= extra:
            break
        extra |= found.brought_up
        found = _try_all(name, start, level, extra)
    return found


def _try_all(name: str, start: State, level: Severity, extra: frozenset[str]) -> Found:
    """The first set that leaves nothing, else the one that leaves least."""
    first = judged(name, start)
    target, blind = fired(first, level), _unjudged(first)
    best, brought_up = Found([], start, len(target)), set[str]()
    for chosen in _sets(start, set(target), extra):
        if best.left == 0:
            break
        state, _ = after(start, chosen)
        verdicts = judged(name, state)
        left = [*fired(verdicts, level), *(_unjudged(verdicts) - blind)]
        if set(left) <= set(target) and len(left) < best.left:
            best = Found(chosen, state, len(left))
        brought_up |= set(left) - set(target)
    return replace(best, brought_up=frozenset(brought_up))


def _unjudged(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in findings if finding.verdict == "not_evaluated"}


def _sets(start: State, target: set[str], extra: frozenset[str]) -> list[list[Option]]:
    """One remedy for each rule that fired, with and without one for each that these bring up; the least effort first."""
    listed = {remedy["id"]: Option(remedy) for options in remedies().values() for remedy in options}
    picks = {frozenset(pick) for codes in (target, target | extra) for pick in _picks(codes)}
    sets: dict[tuple[str, ...], list[Option]] = {}
    for pick in sorted(picks, key=sorted):
        _, used = after(start, sorted((listed[key] for key in sorted(pick)), key=lambda option: option.computed))
        sets[tuple(option.remedy["id"] for option in used)] = used
    return sorted(filter(None, sets.values()), key=lambda used: (sum(option.effort for option in used), len(used)))


def _picks(codes: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The ids of one remedy for each rule that has any."""
    yield from product(*([remedy["id"] for remedy in remedies()[code]] for code in sorted(codes) if code in remedies()))
