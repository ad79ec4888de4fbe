"""Reads the run folders of Weights & Biases, and the files in which it keeps a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.readers import _wandb
from stabilitylens.readers._reader import ranked, reader
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.readers._source import head
from stabilitylens.run import Run


def _is_wandb(path: Path) -> bool:
    return head(path).startswith(_wandb.MAGIC)


def files_of(path: Path) -> list[Path]:
    """What may hold the history at a path, the best first: ``run-….wandb``, exported history rows, the console's text."""
    if path.is_file():
        return [path] if _is_wandb(path) else []
    if not (path / "files").is_dir() or not any(path.glob("*.wandb")) and not any(
        (path / "files" / name).is_file() for name in ("wandb-summary.json", "wandb-metadata.json", "output.log")
    ):
        return []
    some = [file for file in sorted(path.glob("*.wandb")) if _is_wandb(file)]
    rows = sorted([*path.glob("*history.jsonl"), *(path / "files").glob("*history.jsonl")])
    return [file for file in [*some, *rows, path / "files" / "output.log"] if file.is_file()]


@reader(name="wandb_run", sniff=lambda path: 0.93 if files_of(path) else 0.0, most=0.93)
def read(path: Path) -> list[Run]:
    """Weights & Biases: a run's folder, or the file ``run-….wandb`` in it, also of an offline run.

    The history is read from ``run-….wandb`` without W&B being installed; where that file is missing or empty, from rows
    exported beside it, else from the console's text in ``files/output.log``. A damaged block is skipped, and ``run.notes``
    says so. Exports to CSV are tables.
    """
    why = None
    for file in files_of(path):
        try:
            if _is_wandb(file):
                return _read(file)
            found = next((member.read(file) for sure, member in ranked(file) if sure > 0), None)
            if found is not None:
                return found if isinstance(found, list) else [found]
        except BadInput as error:
            why = error
    raise BadInput(f"{path} is a run of W&B without any loss in it; give an export of its history") from why


def _read(path: Path) -> list[Run]:
    skipped, notes = [0], list[str]()

    def rows() -> Iterator[dict[str, Any]]:
        yield from _wandb.histories(path, skipped)
        if skipped[0]:
            notes.append(f"{skipped[0]} damaged parts of {path.name} were skipped")

    return runs_from_rows(path, "wandb_run", rows(), notes)
