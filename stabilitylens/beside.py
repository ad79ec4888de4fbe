"""What was found out about a dumped incident: files beside its folder, for what lies inside is sealed by checksums. Needs no torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Beside:
    """One kind of file.

    Attributes:
        format: what the file calls itself. ending: of its name, after that of the folder.
        whole: whether what was read holds what is asked of it later; it may raise KeyError or TypeError.
    """

    format: str
    ending: str
    whole: Callable[[dict[str, Any]], bool]
    version: int = 1

    def path(self, folder: Path) -> Path:
        """Where it lies, for an incident's folder."""
        return folder.with_name(folder.name + self.ending)

    def read(self, folder: Path) -> dict[str, Any] | None:
        """What it holds; None where there is none that can be read."""
        try:
            body = json.loads(self.path(folder).read_text(encoding="utf-8"))
            ours = isinstance(body, dict) and body.get("format") == self.format and body.get("version") == self.version
            return body if ours and self.whole(body) else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def write(self, folder: Path, body: Mapping[str, Any]) -> Path:
        """Write it whole or not at all; numbers that are not finite are null.

        Raises:
            OSError: it can't be written.
        """
        path = self.path(folder)
        text = json.dumps({"format": self.format, "version": self.version, **_plain(body)}, indent=1, allow_nan=False)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
        return path


def _is_table(body: dict[str, Any]) -> bool:
    return isinstance(body["shown"], bool) and all(_is_row(row) for row in [body["baseline"], *body["rows"]])


def _is_row(row: Any) -> bool:
    words = all(isinstance(row[key], str) for key in ("name", "verdict", "why"))
    numbers = isinstance(row["weight"], (int, float)) and isinstance(row["loss_after"], (int, float, type(None)))
    return words and numbers and isinstance(row["suspect"], (str, type(None)))


def _is_replay(body: dict[str, Any]) -> bool:
    return isinstance(body["exact"], bool) and isinstance(body["text"], str)


#: what the counterfactuals came to: ``Table.to_dict()``
TABLE = Beside("stabilitylens counterfactuals", ".counterfactuals.json", _is_table)
#: what the replay found: ``Replay.to_dict()``
REPLAY = Beside("stabilitylens replay", ".replay.json", _is_replay)


def forget(folder: Path) -> None:
    """Remove what lies beside a folder, which is of an incident that is gone."""
    for kind in (TABLE, REPLAY):
        kind.path(folder).unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """What JSON can hold: None for what is not a finite number, text for what is no plain data, as an id of a sample may be."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)
