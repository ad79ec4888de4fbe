"""Our failure is our problem: caught, counted, reported once; the run goes on."""

from __future__ import annotations

import functools
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from stabilitylens.errors import TrainingStopped
from stabilitylens.guard import debugging

Result = TypeVar("Result")


class LensWarning(UserWarning):
    """Something that a person should know about the observation, never about the training itself."""


class Guard:
    """Counts failures by place and warns of each place once.

    Set ``STABILITYLENS_DEBUG=1`` to have failures raised instead, with their traceback.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._said: set[str] = set()

    def say(self, sentence: str, once: str | None = None) -> None:
        """Warn with a sentence, once for each sentence, or once for each ``once`` where sentences vary."""
        if (once or sentence) not in self._said:
            self._said.add(once or sentence)
            try:
                warnings.warn(f"stabilitylens: {sentence}", LensWarning, stacklevel=3)
            except LensWarning:  # a filter that turns warnings into errors must not end the training
                print(f"stabilitylens: {sentence}", file=sys.stderr)

    def failed(self, place: str, error: Exception) -> None:
        """Count a failure, and say so the first time that it happens at this place."""
        if debugging():
            raise error
        self.failures[place] += 1
        if self.failures[place] == 1:
            self.say(
                f"{place} failed and is not observed at this step ({type(error).__name__}: {error}); training goes on"
            )


def guarded(place: str) -> Callable[[Callable[..., Result]], Callable[..., Result | None]]:
    """Make a method of an object with a ``guard`` attribute return None where it would raise."""

    def wrap(method: Callable[..., Result]) -> Callable[..., Result | None]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Result | None:
            try:
                return method(self, *args, **kwargs)
            except TrainingStopped:
                raise
            except Exception as error:
                self.guard.failed(place, error)
                return None

        return call

    return wrap
