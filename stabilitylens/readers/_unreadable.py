"""Says what is at a path that no reader knows, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

from stabilitylens.readers._events import read_events
from stabilitylens.writers._session import FOLDER

_WANTED = "give the log directory that was passed to stabilitylens.attach"
_SHOWN = 8


def why_unreadable(path: Path) -> str:
    """One sentence: what is there, and what to do instead."""
    if not path.exists():
        return f"{path} does not exist; {_WANTED}"
    return _folder(path) if path.is_dir() else _file(path)


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _folder(path: Path) -> str:
    names = sorted(os.listdir(path))
    if not names:
        return f"{path} is an empty folder; {_WANTED}"
    runs = sorted(str(found.parent.relative_to(path)) for found in path.glob(f"*/**/{FOLDER}") if found.is_dir())
    if runs:
        return f"{path} is a folder of {len(runs)} run{'s' * (len(runs) > 1)} ({_some(runs)}); give the path of one of them"
    events = [name for name in names if "tfevents" in name]
    if events:
        return _file(path / events[0])
    return f"{path} is a folder without a recording (it holds {_some(names)}); {_WANTED}"


def _file(path: Path) -> str:
    with path.open("rb") as file:
        begin = file.read(4096)
    if not begin:
        return f"{path} is an empty file; {_WANTED}"
    if "tfevents" in path.name or begin[4:8] == bytes(4):
        found = read_events(path)
        tags = list(dict.fromkeys([t.tag for t in found.scalars] + [v.tag for o in found.others for v in o.event.summary.value]))
        if found.records:
            holds = f"with the tags {_some(tags)}" if tags else "without any tag"
            return f"{path} is an event file {holds}, which stabilitylens.attach did not write; {_WANTED}"
    try:
        begin.decode()
    except UnicodeDecodeError:
        return f"{path} is a binary file that is no recording; {_WANTED}"
    return f"{path} is a text file, and text logs are not read; {_WANTED}"
