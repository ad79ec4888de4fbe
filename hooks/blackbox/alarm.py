"""Decides that a step is an incident worth a dump."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stabilitylens.hooks.cadence import _on_its_way, is_skipped_by_scaler
from stabilitylens.incidents._online import OnlineDetector
from stabilitylens.rules._logits import LOGIT_HIGH, LOGIT_WATCHED

#: the kind of incident whose sign is a sampled ``max_attn_logit`` above ``LOGIT_HIGH``, which rule SL201 calls high too
ATTENTION_LOGITS = "attention_logits"
#: of each step these are judged and kept
SCALARS = ("loss", "grad_norm", "grad_norm_clipped", "lr", "loss_scale", "skipped")
#: steps without any trouble before a new one is an incident of its own. *Heuristic*.
QUIET = 8
#: steps that lie between two dumps at least. *Heuristic*: what an incident drags behind it is no second one.
REST = 100


class Alarm:
    """Follows the scalars of every step; a stretch of trouble is one incident, that of its first step."""

    def __init__(self) -> None:
        self._detector = OnlineDetector()
        self._arriving: list[tuple[int, dict[str, Any], Any]] = []
        self._quiet, self._dumped = QUIET, -REST
        self._grown: bool | None = None
        self._sampled: list[int] = []

    def note(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Take in a step's scalars, which may still be on their way from the device."""
        self._arriving.append((step, *_on_its_way({name: scalars[name] for name in SCALARS if name in scalars})))

    def arrived(self, wait: bool = False) -> list[tuple[int, dict[str, float], frozenset[str]]]:
        """The steps whose scalars are on the host by now: number, scalars, kinds of trouble.

        Args:
            wait: for all of them.
        """
        out = []
        while self._arriving and (self._arriving[0][2] is None or wait or self._arriving[0][2].query()):
            step, scalars, event = self._arriving.pop(0)
            if event is not None:
                event.synchronize()
            known = {name: float(value) for name, value in scalars.items()}
            norm = known.get("grad_norm", known.get("grad_norm_clipped"))
            found = self._detector.update(known.get("loss"), norm, is_skipped_by_scaler(known))
            out.append((step, known, self._judged(step, found)))
        return out

    def _judged(self, step: int, found: frozenset[str]) -> frozenset[str]:
        """What was found, unless it belongs to an incident that has been dumped."""
        fresh = bool(found) and self._quiet >= QUIET and step >= self._dumped + REST
        self._quiet = 0 if found else self._quiet + 1
        return found if fresh else frozenset()

    def note_logits(self, step: int, largest: float) -> None:
        """Take in the largest attention logit of a sampled step.

        It is news when it passes the limit; not where it began beyond it, nor again until it has come down.
        """
        if largest > LOGIT_HIGH and self._grown is False and step >= self._dumped + REST:
            self._sampled.append(step)
        self._grown = largest > (LOGIT_WATCHED if self._grown else LOGIT_HIGH)

    def sampled(self) -> list[int]:
        """The sampled steps at which attention logits were first seen to have grown, each once."""
        found, self._sampled = self._sampled, []
        return found

    def dumped(self, step: int) -> None:
        """An incident has been dumped: what goes on from there is no new one."""
        self._dumped, self._quiet = step, 0
