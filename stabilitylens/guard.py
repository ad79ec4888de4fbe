"""A fault of our own in one detector, rule or suspect costs that one and no more; what failed is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from stabilitylens.errors import BadInput

#: with this environment variable a fault is raised, with its traceback
DEBUG = "STABILITYLENS_DEBUG"

Result = TypeVar("Result")
Other = TypeVar("Other")


def debugging() -> bool:
    """Whether a person asked for that."""
    return bool(os.environ.get(DEBUG))


@dataclass
class Guard:
    """Calls what may fail, and keeps a sentence for each that did.

    Attributes:
        said: those sentences.
    """

    said: list[str] = field(default_factory=list)

    def call(self, what: str, ask: Callable[[], Result], otherwise: Other) -> Result | Other:
        """What ``ask`` returns, or ``otherwise`` where it fails.

        Args:
            what: who failed and what is missing then, as in ``the detector spike, whose incidents are missing``.

        Raises:
            stabilitylens.errors.BadInput: as ``ask`` does, for that is no fault of ours.
        """
        try:
            return ask()
        except BadInput:
            raise
        except Exception as error:
            if debugging():
                raise
            self.said.append(f"A fault of our own in {what}: {in_words(error)}; set {DEBUG}=1 to see where, and please report it.")
            return otherwise


def in_words(error: BaseException) -> str:
    """``ZeroDivisionError: division by zero`` in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
