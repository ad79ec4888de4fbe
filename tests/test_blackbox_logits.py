"""Attention logits that grow are an incident when they pass the limit, whatever the loss says."""

from __future__ import annotations

from stabilitylens.hooks.blackbox.alarm import REST, Alarm


def seen(values: list[float], every: int = 1) -> list[int]:
    alarm, found = Alarm(), []
    for i, value in enumerate(values, 1):
        alarm.note_logits(i * every, value)
        for step in alarm.sampled():
            alarm.dumped(step)
            found.append(step)
    return found


def test_passing_the_limit_is_one_incident() -> None:
    assert seen([1, 20, 400, 1200, 5000, 1e6]) == [4]
    assert seen([1, 20, 400, 900]) == []


def test_a_training_that_begins_beyond_it_is_none() -> None:
    assert seen([2000.0, 5000.0]) == []


def test_it_is_news_again_once_it_has_come_down_and_some_time_has_passed() -> None:
    assert seen([1, 1200, 500, 1200, 50, 1200], every=REST) == [2 * REST, 6 * REST]
    assert seen([1, 1200, 50, 1200]) == [2]
