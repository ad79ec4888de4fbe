"""The table of times that ``choose_norm`` reads: a small file in the user's cache folder."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

#: of each key, microseconds by implementation
Times = dict[str, dict[str, float]]
#: what this process knows, also where the file can't be written
MEMORY: Times = {}


def table_file() -> Path:
    """Where the table lies: ``stabilitylens/norm_times.json`` in ``XDG_CACHE_HOME``, or in ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home) / "stabilitylens" / "norm_times.json" if home else Path("~/.cache/stabilitylens/norm_times.json").expanduser()


def _read() -> Times:
    """What the file says; a damaged file says nothing."""
    try:
        found = json.loads(table_file().read_text())
        return {str(key): {str(name): float(time) for name, time in times.items()} for key, times in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError):
        return {}


def known_times(key: str) -> dict[str, float] | None:
    """What is known of a key, by this process or by the file."""
    if key not in MEMORY:
        MEMORY.update({k: v for k, v in _read().items() if k not in MEMORY})
    return MEMORY.get(key)


def keep_times(key: str, times: dict[str, float]) -> None:
    """Keep what was measured, beside what other processes have written; where the file can't be written, in memory."""
    MEMORY[key] = times
    with contextlib.suppress(OSError, RuntimeError):
        path = table_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".json")
        with os.fdopen(descriptor, "w") as file:
            json.dump({**_read(), key: times}, file, indent=1)
        os.replace(name, path)
