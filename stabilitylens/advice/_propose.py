"""Search for the smallest change: sets of remedies by effort, each judged again by all static rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from stabilitylens.advice._change import State, apply
from stabilitylens.advice._data import remedies
from stabilitylens.advice._proposal import Change, Proposal
from stabilitylens.anatomy import Anatomy
from stabilitylens.findings import SEVERITIES, Finding, Severity
from stabilitylens.recipe import Recipe
from stabilitylens.rules import Evidence, judge

#: rounds in which a change may bring up a finding that the next round clears
ROUNDS = 3
#: changes in one set; findings seldom need more than one each
LARGEST = 6


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


def propose(name: str, anatomy: Anatomy, recipe: Recipe | None) -> Proposal:
    """The smallest change after which no warning and no error fires, and what would clear the rest."""
    start = State(anatomy, recipe)
    before = _judge(name, start)
    needed, state = _search(name, start, "warning")
    wished, end = _search(name, state, "info")
    after, last = _judge(name, state), _codes(_judge(name, end), "info")
    left = tuple(finding for finding in before if finding.verdict == "fired" and finding.code in last)
    return Proposal(
        name, tuple(before), tuple(after), tuple(_changes(name, start, needed, "warning")),
        tuple(_changes(name, state, wished, "info")), left, state.anatomy, state.recipe,
    )


def _judge(name: str, state: State) -> list[Finding]:
    return judge(Evidence(name, state.anatomy, state.recipe), static=True)


def _codes(findings: Sequence[Finding], level: Severity) -> set[str]:
    """Rules that fired at a level or above."""
    return {f.code for f in findings if f.verdict == "fired" and SEVERITIES[f.severity or "info"] >= SEVERITIES[level]}


def _unjudged(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in findings if finding.verdict == "not_evaluated"}


@dataclass(frozen=True)
class Round:
    """What trying all sets of some options has shown.

    Attributes:
        chosen, state: the first set after which nothing is left; else the one that leaves least.
        left: how many rules that leaves.
        brought_up: rules that sets which were tried before made fire, or made lose their evidence.
    """

    chosen: list[Option]
    state: State
    left: int
    brought_up: frozenset[str]


def _search(name: str, start: State, level: Severity) -> tuple[list[Option], State]:
    """The set that clears most of what fired, with the least effort; and the state after it."""
    wanted = _codes(_judge(name, start), level)
    found = _try_all(name, start, wanted, level)
    for _ in range(ROUNDS):
        if found.brought_up <= wanted:
            break
        wanted = wanted | found.brought_up
        found = _try_all(name, start, wanted, level)
    return found.chosen, found.state


def _try_all(name: str, start: State, wanted: set[str], level: Severity) -> Round:
    first = _judge(name, start)
    target, blind = _codes(first, level), _unjudged(first)
    best = Round([], start, len(target), frozenset())
    brought_up: set[str] = set()
    for chosen in _sets(_options(wanted)) if target else ():
        state = _after(start, chosen)
        if state is None:
            continue
        judged = _judge(name, state)
        left = _codes(judged, level) | (_unjudged(judged) - blind)
        if left <= target and len(left) < best.left:
            best = Round(chosen, state, len(left), frozenset())
        if not left:
            break
        brought_up |= left - target
    return replace(best, brought_up=frozenset(brought_up))


def _options(codes: set[str]) -> list[Option]:
    """The remedies of these rules, computed ones last; one that is listed under several is one option."""
    listed = {remedy["id"]: remedy for code in sorted(codes) for remedy in remedies().get(code, ())}
    return sorted((Option(remedy) for remedy in listed.values()), key=lambda option: option.computed)


def _sets(options: list[Option]) -> Iterator[list[Option]]:
    """Sets of options, the least effort first, then the fewest changes."""
    sizes = range(1, min(len(options), LARGEST) + 1)
    found = [list(chosen) for size in sizes for chosen in combinations(options, size)]
    yield from sorted(found, key=lambda chosen: (sum(option.effort for option in chosen), len(chosen)))


def _after(start: State, chosen: Sequence[Option]) -> State | None:
    """The state after a set; None where one of its changes does nothing."""
    state: State | None = start
    for option in chosen:
        state = apply(state, option.remedy) if state is not None else None
    return state


def _changes(name: str, start: State, chosen: list[Option], level: Severity) -> Iterator[Change]:
    """Each change with what fires without it."""
    state = start
    for option in chosen:
        changed = apply(state, option.remedy)
        assert changed is not None
        without = _after(start, [other for other in chosen if other is not option]) or start
        clears = _codes(_judge(name, without), level) - _codes(_judge(name, _after(start, chosen) or start), level)
        fields = dict(_fields(state, changed, option.remedy))
        yield Change(option.remedy["say"], option.remedy["costs"], tuple(sorted(clears)), fields)
        state = changed


def _fields(before: State, after: State, remedy: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Each field that a remedy names, with its value before and after."""
    for part in ("anatomy", "recipe"):
        for field in remedy.get(part, {}):
            old, new = _value(before, part, field), _value(after, part, field)
            if old != new:
                yield f"{part}.{field}", (old, new)


def _value(state: State, part: str, field: str) -> Any:
    """Of the model as a whole, or the largest of its parts where those differ by nature."""
    if field == "alpha":
        return max((sub.alpha for sub in state.anatomy.sub_layers if sub.alpha is not None), default=None)
    if field == "attention_scale":
        return max((call.scale for call in state.anatomy.attention_calls if call.scale is not None), default=None)
    return getattr(getattr(state, part), field, None)
