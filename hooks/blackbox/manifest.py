"""The manifest of a dumped incident: what it is, what lies in its folder, and how each file is known to be whole."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from stabilitylens.errors import BadInput

NAME, FORMAT, VERSION = "manifest.json", "stabilitylens incident", 1
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Manifest:
    """What an incident's folder says of itself.

    Attributes:
        step: of the incident. kinds: of trouble, as ``spike``, ``nonfinite``, ``grad_spike``, or ``asked`` for ``lens.dump()``.
        reason: in words.
        created: seconds since 1970.
        world: processes that trained together.
        snapshot_step: the step that the snapshot is the beginning of; None without one.
        steps: of each kept step its scalars, as the process had them that wrote this, and the number of its micro-batches, in order.
        left_out: what was not kept, by place, and why.
        setting: versions, device, dtype, threads and flags that decide about bits.
        files: SHA-256 and size of each file.
    """

    step: int
    kinds: tuple[str, ...]
    reason: str
    created: float
    world: int
    snapshot_step: int | None
    steps: tuple[dict[str, Any], ...]
    left_out: dict[str, str]
    setting: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The manifest as text that says whether it is whole."""
        body = {"format": FORMAT, "version": VERSION, **encoded(asdict(self))}
        return json.dumps(body | {"sha256": _digest(body)}, indent=1, allow_nan=False)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def encoded(value: Any) -> Any:
    """Numbers that JSON has no word for as text."""
    if isinstance(value, dict):
        return {str(k): encoded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(v) for v in value]
    return {"number": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def decoded(value: Any) -> Any:
    """The other way round."""
    if isinstance(value, dict):
        return float(value["number"]) if value.keys() == {"number"} else {k: decoded(v) for k, v in value.items()}
    return [decoded(v) for v in value] if isinstance(value, list) else value


def sha256(path: Path) -> str:
    """Of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an incident's folder, whole or not at all; the files are not looked at.

    Raises:
        BadInput: there is none, it is damaged, foreign, or newer than this program.
    """
    path = folder / NAME
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{folder} holds no {NAME}, so it is no dumped incident; give a folder incidents/step_…") from None
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no JSON, so it is damaged or foreign; nothing of the incident is used") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise BadInput(f"{path} is no manifest of an incident of this program; give a folder incidents/step_…")
    if body.get("version") != VERSION:
        raise BadInput(f"{path} has version {body.get('version')!r}, and this program reads {VERSION}; use the one that wrote it")
    stated = body.pop("sha256", None)
    try:
        known = {f.name: decoded(body[f.name]) for f in fields(Manifest)} if stated == _digest(body) else {}
    except (KeyError, ValueError, TypeError):
        known = {}
    if not known:
        raise BadInput(f"{path} does not have the checksum that it states, so it is damaged; nothing of the incident is used")
    wrong = next((name for name, is_right in _SHAPES.items() if not is_right(known[name])), None)
    if wrong is None and known["snapshot_step"] is not None and not known["snapshot_step"] <= known["step"]:
        wrong = "snapshot_step"
    if wrong is not None:
        raise BadInput(f"{path} states {wrong} as no dump writes it, so it is foreign; nothing of the incident is used")
    return Manifest(**known | {"kinds": tuple(known["kinds"]), "steps": tuple(known["steps"])})


def _is_step(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_files(value: Any) -> bool:
    """At least what was kept of a step lies in one."""
    whole = isinstance(value, dict) and all(isinstance(v, dict) and type(v.get("bytes")) is int and isinstance(v.get("sha256"), str) for v in value.values())
    return whole and all(_is_inside(name) for name in value) and any(name.endswith("steps.pt") for name in value)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


#: what each entry has to be, so that a manifest with a right checksum that no dump wrote is known
_SHAPES: dict[str, Callable[[Any], bool]] = {
    "step": _is_step,
    "kinds": lambda v: isinstance(v, list) and all(isinstance(kind, str) for kind in v),
    "reason": lambda v: isinstance(v, str),
    "created": lambda v: isinstance(v, (int, float)),
    "world": lambda v: type(v) is int and v >= 1,
    "snapshot_step": lambda v: v is None or _is_step(v),
    "steps": lambda v: isinstance(v, list) and all(isinstance(step, dict) for step in v),
    "left_out": lambda v: isinstance(v, dict) and all(isinstance(why, str) for why in v.values()),
    "setting": lambda v: isinstance(v, dict),
    "files": _are_files,
}


def check_files(folder: Path, manifest: Manifest) -> None:
    """Say which file of an incident is damaged.

    Raises:
        BadInput: one is missing, cut, or not what was written.
    """
    for name, stated in manifest.files.items():
        path = folder / name
        try:
            size, found = path.stat().st_size, None
            if size == stated["bytes"]:
                found = sha256(path)
        except OSError as error:
            raise BadInput(f"{path} can't be read ({error.strerror}), so the incident is incomplete") from error
        if size != stated["bytes"]:
            raise BadInput(f"{path} has {size} bytes where {stated['bytes']} were written; it is cut, and nothing of the incident is used")
        if found != stated["sha256"]:
            raise BadInput(f"{path} is not what was written (its SHA-256 differs); nothing of the incident is used")
