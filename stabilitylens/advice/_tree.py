"""Walk the tree: every topic's first branch whose conditions hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stabilitylens.advice._advice import Advice, Alternative, Choice, Scenario
from stabilitylens.advice._condition import Decision, facts_of, holds
from stabilitylens.advice._data import scenarios, sources, topics
from stabilitylens.advice._plan import planned_anatomy, planned_recipe
from stabilitylens.advice._situation import HEAD, Situation
from stabilitylens.advice._source import Source
from stabilitylens.rules import Evidence, judge
from stabilitylens.rules._rule import BEYOND, in_words


def advise_on(situation: Situation) -> Advice:
    """The advice on a plan, judged by our own static rules."""
    facts = situation.facts()
    found = tuple(_scenarios(facts))
    facts["scenarios"] = tuple(scenario.name for scenario in found)
    choices, sets, asked = [], [], {fact for s in scenarios() for fact in facts_of(s["when"])}
    for topic in topics():
        branch = _branch(topic, facts, asked)
        if branch is None:
            continue
        choices.append(_choice(topic, branch, _decided(branch, facts, found), situation))
        sets.append(branch.get("sets", {}))
        facts[topic["topic"]] = branch["value"]
    anatomy, recipe = planned_anatomy(situation, sets), planned_recipe(situation, sets)
    findings = judge(Evidence(situation.title, anatomy, recipe), static=True)
    return Advice(situation, found, tuple(choices), tuple(_assumptions(situation, asked)), anatomy, recipe, tuple(findings))


def _scenarios(facts: Mapping[str, Any]) -> Iterator[Scenario]:
    for scenario in scenarios():
        decided = holds(scenario["when"], facts)
        if decided is not None:
            yield Scenario(scenario["name"], scenario["title"], tuple(decided))


def _branch(topic: Mapping[str, Any], facts: Mapping[str, Any], asked: set[str]) -> Mapping[str, Any] | None:
    """The first branch that holds; adds the facts that were asked for on the way."""
    for branch in topic["branches"]:
        asked |= facts_of(branch.get("when", {}))
        if holds(branch.get("when", {}), facts) is not None:
            found: Mapping[str, Any] = branch
            return found
    return None


def _decided(branch: Mapping[str, Any], facts: Mapping[str, Any], found: Iterable[Scenario]) -> tuple[Decision, ...]:
    """The facts that led to a branch; for a scenario, those that put the plan in it."""
    behind = {scenario.name: scenario.decided_by for scenario in found}
    decided = holds(branch.get("when", {}), facts) or []
    facts_behind = [part for d in decided for part in (behind[d.threshold] if d.fact == "scenarios" else (d,))]
    return tuple(dict.fromkeys(facts_behind))


def _choice(
    topic: Mapping[str, Any], branch: Mapping[str, Any], decided: tuple[Decision, ...], situation: Situation
) -> Choice:
    words = situation.words()
    text = {name: str(branch[name]).format_map(words) for name in ("title", "why", "contradicts", "costs")}
    cited, others = _cited(branch["sources"]), topic["alternatives"]
    return Choice(
        topic["topic"], topic["title"], branch["value"], strength=branch["strength"], sources=cited,
        decided_by=decided,
        rejected=tuple(_alternative(key, others[key], words) for key in branch["rejected"]),
        scale_note=_scale_note(cited, situation.params), **text,
    )


def _alternative(key: str, fields: Mapping[str, Any], words: Mapping[str, Any]) -> Alternative:
    return Alternative(key, fields["title"], fields["why"].format_map(words), _cited(fields["sources"]))


def _cited(keys: Iterable[str]) -> tuple[Source, ...]:
    return tuple(sources()[key] for key in keys)


def _scale_note(cited: Iterable[Source], params: float) -> str:
    """A sentence where the plan is far larger than every model of the evidence whose size is known."""
    largest = max((source.scale for source in cited if source.scale is not None), default=None)
    if largest is None or params < BEYOND * largest:
        return ""
    return f"The evidence is at {in_words(largest)} parameters, this plan has {in_words(params)}."


def _assumptions(situation: Situation, asked: set[str]) -> Iterator[str]:
    """What was not given and was asked for on the way."""
    missing = {
        "batch_size": "no small batch of images is assumed, and β2 is the one for large steps",
        "seq_len": "the sequences are taken to be no longer than 8,192, and a step's tokens are not known",
        "lr": "the peak learning rate is taken to be below 0.01",
        "precision": "the hardware is taken to have bf16",
    }
    needs = {"batch_size": {"batch_size", "samples_per_step", "tokens_per_step"}, "seq_len": {"seq_len", "tokens_per_step"}}
    for fact, sentence in missing.items():
        if getattr(situation, fact) is None and asked & needs.get(fact, {fact}):
            yield f"{fact} was not given: {sentence}"
    if situation.head_width is None:
        yield f"head_width was not given: heads are taken to have {HEAD} channels"
    if situation.variable_length is None:
        yield f"variable_length was not given: samples are taken to {'differ in length' if situation.differs_in_length else 'be of one length'}"
