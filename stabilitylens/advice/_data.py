"""The data files of this folder, read once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from stabilitylens.advice._source import Source


def _read(*path: str) -> Any:
    return yaml.safe_load(files("stabilitylens.advice").joinpath(*path).read_text(encoding="utf-8"))


@cache
def sources() -> dict[str, Source]:
    """Every source by its key."""
    return {key: Source(**fields) for key, fields in _read("sources.yaml").items()}


@cache
def thresholds() -> dict[str, dict[str, Any]]:
    """Every threshold by its name: ``value``, ``heuristic``, ``why``."""
    found: dict[str, dict[str, Any]] = _read("thresholds.yaml")
    return found


@cache
def scenarios() -> list[dict[str, Any]]:
    """The scenarios: ``name``, ``title``, ``when``."""
    found: list[dict[str, Any]] = _read("scenarios.yaml")
    return found


@cache
def topics() -> list[dict[str, Any]]:
    """The questions in the order they are decided in: ``topic``, ``title``, ``alternatives``, ``branches``."""
    folder = files("stabilitylens.advice").joinpath("topics")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return [_read("topics", name) for name in names]


@cache
def remedies() -> dict[str, list[dict[str, Any]]]:
    """Changes by the code of the rule whose finding they clear, best first."""
    found: dict[str, list[dict[str, Any]]] = _read("remedies.yaml")
    return found
