"""The bench of the detectors, with few seeds: rates hold on curves whose truth is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def seen() -> dict[str, float]:
    measured = bench().measure(seeds=1, levels=(0.01, 0.12))
    return {question: float(np.mean(np.concatenate(list(by.values())))) for question, by in measured.items()}


def bench() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "detectors.py"
    spec = importlib.util.spec_from_file_location("detectors_bench", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_false_alarms(seen: dict[str, float]) -> None:
    assert seen["false alarms a run"] <= 0.1


def test_spikes_are_hit(seen: dict[str, float]) -> None:
    hits = {question: rate for question, rate in seen.items() if question.startswith("hit")}
    assert len(hits) == 9 and min(hits.values()) >= 0.8 and np.mean(list(hits.values())) >= 0.93


def test_endings_and_rises(seen: dict[str, float]) -> None:
    assert seen["NaN ending"] == 1.0 and seen["stuck after a jump"] == 1.0
    assert seen["slow divergence, near its onset"] >= 0.8


def test_one_event_is_one_incident(seen: dict[str, float]) -> None:
    assert seen["incidents an event"] <= 1.05
