"""What has become of a model since the lens was attached: parameters put in place of others, modules that were added."""

from __future__ import annotations

from collections.abc import Callable

from stabilitylens.hooks.guard import Guard
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.subject import Subject
from stabilitylens.hooks.taps import ForwardTaps


def note_changes(subject: Subject, taps: ForwardTaps, parameters: ParameterTaps, event: Callable[[str, str], None], guard: Guard) -> None:
    """Say what has changed, by an event of a kind, and observe from the next step on what was added."""
    fresh, parameters.fresh = parameters.fresh, {}
    added = subject.renew()
    if added:
        taps.follow(subject.names, set(subject.blocks))
    texts = []
    if replaced := sum(fresh.values()):
        texts.append(f"{replaced} of the model's parameters were put in place of those that it had")
    if added:
        more = f" and {len(added) - 1} more modules" if len(added) > 1 else ""
        texts.append(f"{added[0]}{more} came into the model after attach(), and their forward is observed from the next step on")
    if texts:
        text = "the model has changed: " + "; ".join(texts)
        event("model_changed", text)
        guard.say(text, once=text)
