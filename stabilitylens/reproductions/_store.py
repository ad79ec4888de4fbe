"""Measurements on disk, one file each, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stabilitylens import __version__
from stabilitylens.reproductions._claim import Claim, Mode, Numbers
from stabilitylens.reproductions._origin import Origin
from stabilitylens.reproductions._place import device

#: modules of this folder that claims measure with
SHARED = ("_alone", "_choices", "_data", "_initial", "_model", "_parts", "_place", "_training")


def what_measures(source: str) -> str:
    """Code without its docstrings and without what is claimed, expected and planned: changing those changes no measurement."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [each for each in node.decorator_list if not ast.unparse(each).startswith("claim(")]
    return ast.unparse(tree)


@cache
def _shared() -> str:
    paths = (Path(__file__).with_name(f"{name}.py") for name in SHARED)
    return "".join(what_measures(path.read_text(encoding="utf-8")) for path in paths)


@dataclass(frozen=True)
class Result:
    """One measurement: of which set-up, in how many seconds of processor time, what came out, and where it comes from."""

    fingerprint: str
    seconds: float
    numbers: Numbers
    origin: Origin


def _sum(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def read_result(path: Path) -> Result | None:
    """A result as it was written; None where there is none, or where anything of it was lost or changed since."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("sum") != _sum(found):
            return None
        return Result(**found | {"origin": Origin.from_dict(found["origin"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_result(result: Result, path: Path) -> None:
    """Whole or not at all, with a sum that tells damage."""
    found = asdict(result)
    write_whole(path, json.dumps(found | {"sum": _sum(found)}))


def write_whole(path: Path, text: str) -> None:
    """Put a text in place of what is there, in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@dataclass(frozen=True)
class Job:
    """One measurement: a cell of a claim with one seed, and the folder that it leaves its results in."""

    claim: Claim
    cell: str
    seed: int
    mode: Mode
    out: Path

    @property
    def _name(self) -> Path:
        safe = self.cell.replace("/", "_").replace(" ", "_")
        return Path(self.claim.name, safe, f"seed_{self.seed}")

    @property
    def record(self) -> Path:
        """Where the recordings of its trainings are."""
        return self.out / self.mode / "runs" / self._name

    @property
    def result(self) -> Path:
        """Where its numbers are."""
        return (self.out / self.mode / "results" / self._name).with_suffix(".json")

    @property
    def weight(self) -> float:
        """Its share of the budget, in seconds."""
        plan = self.claim.plan(self.mode)
        return plan.seconds / (len(plan.cells) * plan.seeds)

    @property
    def fingerprint(self) -> str:
        """Of the set-up and of the code that measures: a result of another one is not used."""
        source = what_measures(inspect.getsource(sys.modules[self.claim.measure.__module__])) + _shared()
        setup = repr(self.claim.plan(self.mode).cells[self.cell])
        return hashlib.sha256(f"{__version__}{source}{setup}".encode()).hexdigest()[:16]

    def stored(self) -> Result | None:
        """What an earlier run measured with the same set-up and the same versions; None where there is nothing whole."""
        found = read_result(self.result)
        if found is None or found.fingerprint != self.fingerprint:
            return None
        return found if found.origin.counts_as(Origin.now(device())) else None

    def measure(self) -> Result:
        """Measure and store."""
        began = time.process_time()
        cell = self.claim.plan(self.mode).cells[self.cell]
        numbers: Numbers = {k: float(v) for k, v in self.claim.measure(cell, self.seed, self.record).items()}
        found = Result(self.fingerprint, time.process_time() - began, numbers, Origin.now(device()))
        write_result(found, self.result)
        return found
