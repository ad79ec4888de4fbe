"""Says what is at a path that no reader knows, and what to do."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

from stabilitylens.readers._events import read_events
from stabilitylens.writers._session import FOLDER, session_of

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
    if runs := _runs(path):
        many = "runs" if len(runs) > 1 else "run"
        return f"{path} is a folder of {len(runs)} {many} ({_some(runs)}); give the path of one of them"
    events = [name for name in names if "tfevents" in name]
    if events:
        return _file(path / events[0])
    return f"{path} is a folder without a recording (it holds {_some(names)}); {_WANTED}"


def _runs(path: Path) -> list[str]:
    """Recordings up to three folders down, by their relative path."""
    folders = [found for depth in range(1, 4) for found in path.glob("*/" * depth + FOLDER) if found.is_dir()]
    runs = [found.parent for found in folders if any(session_of(name) is not None for name in os.listdir(found))]
    return sorted(str(run.relative_to(path)) for run in runs)


def _file(path: Path) -> str:
    with path.open("rb") as file:
        begin = file.read(4096)
    if not begin:
        return f"{path} is an empty file; {_WANTED}"
    if "tfevents" in path.name or begin[4:8] == bytes(4):
        found = read_events(path)
        if found.records:
            tags = [t.tag for t in found.scalars] + [v.tag for o in found.others for v in o.event.summary.value]
            holds = f"with the tags {_some(list(dict.fromkeys(tags)))}" if tags else "without any tag"
            return f"{path} is an event file {holds}, which stabilitylens.attach did not write; {_WANTED}"
    kind = "text" if _is_text(begin) else "binary"
    return f"{path} is a {kind} file that is no recording; {_WANTED}"


def _is_text(begin: bytes) -> bool:
    """Whether the beginning of a file is UTF-8, the last character of which may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begin)
    except UnicodeDecodeError:
        return False
    return b"\0" not in begin
