"""What rules share: findings by layer, words for places and numbers, trends."""

from __future__ import annotations

import numpy as np
import pytest
import run_builders

from stabilitylens.findings import Where
from stabilitylens.rules import Fired
from stabilitylens.rules._layers import names, number, per_layer
from stabilitylens.rules._logits import logit_growth, no_growth
from stabilitylens.rules._track import Track
from stabilitylens.rules._trend import held, rising


def _fired(layer: int, severity: str = "warning", head: int = 0) -> Fired:
    return Fired(severity, f"layer {layer} head {head}", where=Where(layer, f"blocks.{layer}", head))


def test_one_finding_a_layer_worst_first():
    got = per_layer([_fired(1), _fired(0, head=3), _fired(1, "error", 2), _fired(0)])
    assert [(f.where.layer, f.where.head) for f in got] == [(1, 2), (0, 3)]


def test_more_than_four_layers_are_one_finding_that_names_them():
    (got,) = per_layer([_fired(i, "error" if i == 7 else "warning") for i in (0, 2, 3, 4, 7, 9, 10)])
    assert got.where.layer == 7 and got.message == "layer 7 head 0; and in 6 more: layers 0, 2 to 4, 9, 10"


def test_places_and_numbers_in_words():
    assert names([Where(3), Where(layer_name="embedding")]) == "layer 3, embedding"
    assert [number(x) for x in (0.012345, 5.432, 123.4, 22_380.0, 3e9)] == ["0.0123", "5.43", "123", "22,400", "3e+09"]


@pytest.mark.parametrize("seed", range(5))
def test_a_trend_is_told_from_noise(seed: int):
    track = lambda values: Track(Where(), np.arange(len(values)), values)  # noqa: E731
    noise = np.exp(0.2 * np.random.default_rng(seed).normal(size=300))
    assert not rising(track(150 * noise))
    assert rising(track(np.geomspace(50, 400, 300) * noise))
    assert not rising(track(np.geomspace(400, 50, 300) * noise))
    assert held(track(np.minimum(np.geomspace(1, 1e5, 300), 300) * noise))
    assert not held(track(np.full(300, 150.0)))


def test_a_spike_of_one_sample_is_no_growth_and_is_named() -> None:
    run = run_builders.healthy()
    assert no_growth(run) == "no head's max_attn_logit stayed past 100 in this run"
    run["max_attn_logit"].values[20, 1, 0] = 567.0
    assert logit_growth(run) == []
    assert no_growth(run).endswith("stayed past 100 in this run, though single samples reached 567")
