"""One thread at a time touches what is kept, whichever asks for a dump."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator


class Turns:
    """Knows the thread that trains, and has what another one notes recorded by it.

    Args:
        event: records something that happened at a step: kind and text.

    """

    def __init__(self, event: Callable[[int, str, str], None]) -> None:
        self._lock, self._gate, self._wanted = threading.RLock(), threading.Lock(), False
        self._event, self._trains = event, threading.get_ident()
        self._waiting: list[tuple[int, str, str]] = []

    @property
    def elsewhere(self) -> bool:
        """Whether another thread than the one that trains is asking."""
        return threading.get_ident() != self._trains

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Nobody else touches what is kept meanwhile. The thread that trains goes first, and may take its turn within its turn."""
        if self.elsewhere:
            with self._gate:
                while self._wanted:
                    time.sleep(0.001)
                with self._lock:
                    yield
            return
        try:
            self._wanted = True
            with self._lock:
                yield
        finally:
            self._wanted = False

    def note(self, step: int, kind: str, text: str) -> None:
        """Record an event, in another thread when the next step ends."""
        if self.elsewhere:
            self._waiting.append((step, kind, text))
        else:
            self._event(step, kind, text)

    def take_over(self) -> None:
        """The thread that calls trains: it records what others have noted."""
        self._trains = threading.get_ident()
        while self._waiting:
            self._event(*self._waiting.pop(0))
