"""Says what is at a path that no reader knows, and what to do."""

from __future__ import annotations

import errno
import os
import re
import zipfile
from pathlib import Path

from stabilitylens.readers._events import read_events
from stabilitylens.readers._json import begins_json
from stabilitylens.readers._source import head, is_text

_WANTED = "give a training run's log, or the log directory that was passed to stabilitylens.attach"
_SHOWN = 8
_POINTER = b"version https://git-lfs.github.com/spec/"
#: what is no log, by its first bytes
_KINDS = {
    b"\x89PNG": "a picture (PNG)", b"\xff\xd8\xff": "a picture (JPEG)", b"GIF8": "a picture (GIF)", b"RIFF": "a sound, film or picture",
    b"%PDF": "a PDF", b"\x80\x02": "a pickle, which is never opened here", b"\x80\x03": "a pickle, which is never opened here",
    b"\x80\x04": "a pickle, which is never opened here", b"\x80\x05": "a pickle, which is never opened here",
    b"\x93NUMPY": "a NumPy array", b"\x7fELF": "a program", b"SQLite format 3": "an SQLite database", b"PAR1": "a Parquet file",
    b"\x89HDF": "an HDF5 file", b"GGUF": "model weights (GGUF)",
}  # fmt: skip
_SETTING = re.compile(rb"^\s*[\w.\-]+\s*[:=]", re.MULTILINE)


def why_unreadable(path: Path) -> str:
    """One sentence: what is there, and what to do instead."""
    if path.is_symlink() and not path.exists():
        return f"{path} is a symbolic link that leads {_leads(path)}; {_WANTED}"
    if not path.exists():
        return f"{path} does not exist; {_WANTED}"
    return _folder(path) if path.is_dir() else _file(path)


def _leads(link: Path) -> str:
    try:
        os.stat(link)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "back to itself"
    return f"to {os.readlink(link)}, which does not exist"


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _folder(path: Path) -> str:
    names = sorted(os.listdir(path))
    if not names:
        return f"{path} is an empty folder; {_WANTED}"
    events = [name for name in names if "tfevents" in name]
    if events:
        return _file(path / events[0])
    return f"{path} is a folder without a recording or another log (it holds {_some(names)}); {_WANTED}"


def _file(path: Path) -> str:
    begin = head(path)
    if not begin:
        return f"{path} is an empty file; {_WANTED}"
    if begin.startswith(_POINTER):
        return f"{path} is a Git LFS pointer, not the file it stands for; run git lfs pull in its repository"
    if begin[4:8] == bytes(4) and begin.strip(b"\0") and (said := _events(path)) is not None:
        return said
    return f"{path} is {_kind(path, begin)}, in which no loss was found; {_WANTED}"


def _events(path: Path) -> str | None:
    found = read_events(path)
    if not found.records:
        return None
    tags = [t.tag for t in found.scalars] + [v.tag for o in found.others for v in o.event.summary.value]
    holds = f"with the tags {_some(list(dict.fromkeys(tags)))}" if tags else "without any tag"
    return f"{path} is an event file {holds}, in which no scalar of a training was found; {_WANTED}"


def _is_torch(path: Path) -> bool:
    try:
        return any(name.endswith("data.pkl") for name in zipfile.ZipFile(path).namelist())
    except zipfile.BadZipFile:
        return False


def _kind(path: Path, begin: bytes) -> str:
    known = next((kind for magic, kind in _KINDS.items() if begin.startswith(magic)), None)
    if known is not None:
        return f"a binary file ({known.partition(' ')[2]})" if known.startswith(("a ", "an ")) else f"a binary file ({known})"
    if begin.startswith(b"PK\x03\x04"):
        return "a binary file (weights saved by torch.save)" if _is_torch(path) else "a binary file (a zip archive: unpack it first)"
    if not is_text(begin):
        return "a binary file"
    if begins_json(path):
        return "a text file of JSON (a configuration?)"
    if begin.lstrip()[:1] == b"<":
        return "a text file of HTML or XML"
    settings = len(_SETTING.findall(begin)) >= 0.8 * len(begin.splitlines())
    return "a text file of settings" if settings else "a text file"
