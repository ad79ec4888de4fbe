"""Curves that are odd for a reason, and incidents that hide in them: sources, epochs, stages, rewards, long records."""

from __future__ import annotations

import numpy as np
import pytest

from stabilitylens.incidents import Incident, detect
from stabilitylens.incidents._scores import grown
from stabilitylens.incidents._windows import OVERLAP, WINDOW
from stabilitylens.run import Run, Series

STEP = np.arange(1000)
DESCENT = 3.0 + 7.0 * np.exp(-STEP / 120.0)


def noise(seed: int, level: float = 0.01, n: int = 1000) -> np.ndarray:
    return 1.0 + level * np.random.default_rng(seed).standard_normal(n)


def incidents(loss: np.ndarray, key: str = "loss", **others: np.ndarray) -> list[Incident]:
    steps = np.arange(len(loss))
    series = {name: Series(name, steps, np.asarray(values, float)) for name, values in {"loss": loss, **others}.items()}
    return [i for i in detect(Run("memory", series, loss_key=key)) if i.kind != "plateau"]


def mixed(seed: int, share: float, easy: float, hard: float) -> np.ndarray:
    """A batch from either of two data sets, drawn at random."""
    second = np.random.default_rng([seed, 1]).random(1000) < share
    return np.where(second, hard, easy) * noise(seed, 0.03) + 2.0 * np.exp(-STEP / 100.0)


MIXTURES = [(0.7, 1.2, 3.0), (0.5, 2.2, 3.0), (0.2, 2.0, 2.9), (0.1, 3.0, 4.5), (0.05, 2.0, 3.5)]


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("seed", range(3))
def test_two_sources_that_take_turns_are_no_incident(mixture: tuple[float, float, float], seed: int) -> None:
    assert [i.explanation for i in incidents(mixed(seed, *mixture)) if i.severity != "info"] == []


@pytest.mark.parametrize("mixture", MIXTURES)
def test_a_spike_is_found_among_two_sources(mixture: tuple[float, float, float]) -> None:
    loss = mixed(0, *mixture)
    loss[600:606] *= 1.3 * mixture[2] / mixture[1]
    assert any(i.kind == "spike" and abs(i.start_step - 600) <= 3 for i in incidents(loss))


@pytest.mark.parametrize("seed", range(3))
def test_an_epoch_in_which_the_loss_climbs_and_drops_at_its_edge_is_no_incident(seed: int) -> None:
    epoch, within = STEP // 200, (STEP % 200) / 200.0
    teeth = (2.0 - 0.15 * epoch + 0.25 * within) * noise(seed)
    drops = (np.array([2.4, 2.0, 1.5, 1.1, 0.8])[epoch] + 0.06 * within) * noise(seed, 0.02)
    for loss in (teeth, drops):
        assert incidents(loss, epoch=STEP / 200.0) == []


def test_a_spike_and_a_divergence_are_found_among_teeth() -> None:
    teeth = (2.0 - 0.15 * (STEP // 200) + 0.25 * (STEP % 200) / 200.0) * noise(0)
    spiked, diverged = teeth.copy(), teeth.copy()
    spiked[500:505] *= 1.3
    diverged[850:] *= 1.0 + 0.01 * np.arange(150)
    assert [(i.kind, i.start_step) for i in incidents(spiked, epoch=STEP / 200.0)] == [("spike", 500)]
    kinds = [(i.kind, i.severity) for i in incidents(diverged, epoch=STEP / 200.0)]
    assert ("divergence", "error") in kinds


def test_tall_spikes_at_an_interval_are_told_with_it() -> None:
    loss = DESCENT * noise(0)
    for at in range(100, 1000, 100):
        loss[at : at + 4] += 1.0
    found = incidents(loss)
    assert [(i.kind, i.start_step) for i in found] == [("spike", at) for at in range(100, 1000, 100)]
    assert all("every 100 steps" in i.explanation and i.severity == "warning" for i in found)
    explained = incidents(loss, epoch=STEP / 100.0)
    assert len(explained) == 9 and all("epochs begin there" in i.explanation and i.severity == "info" for i in explained)


def test_an_objective_that_changes_as_the_learning_rate_restarts_is_a_stage() -> None:
    loss = np.where(STEP < 500, DESCENT, 3.4 + np.exp(-(STEP - 500) / 60.0)) * noise(0)
    lr = 3e-4 * (1 - (STEP % 500) / 500.0)
    (stage,) = incidents(loss, lr=lr)
    assert (stage.kind, stage.severity, stage.start_step) == ("level_shift", "info", 500)
    assert "learning rate restarts" in stage.explanation
    (unexplained,) = incidents(loss)
    assert unexplained.severity != "info"


@pytest.mark.parametrize("seed", range(3))
def test_a_rise_does_not_begin_before_its_cause(seed: int) -> None:
    loss = DESCENT * noise(seed)
    loss[502:] += 4.0 * (1.0 - np.exp(-(STEP[502:] - 502) / 10.0))
    (rise,) = incidents(loss)
    assert rise.kind == "divergence" and 502 <= rise.start_step <= 504


def test_a_blow_at_the_head_is_a_spike_and_a_swelling_is_warmup() -> None:
    blow, swelling = DESCENT * noise(0), DESCENT * noise(0)
    blow[3:6] += 6.0
    swelling[:40] += 6.0 * np.exp(-(((STEP[:40] - 14) / 5.0) ** 2))
    assert [(i.kind, i.start_step, i.end_step) for i in incidents(blow)] == [("spike", 3, 5)]
    assert incidents(swelling) == []


def test_one_point_far_beyond_the_noise_is_a_warning_and_its_own_noise_is_not_blamed() -> None:
    loss = DESCENT * noise(0)
    loss[500] += 2.0
    (outlier,) = incidents(loss)
    assert (outlier.kind, outlier.severity) == ("outlier", "warning") and "its noise alone" not in outlier.explanation
    norm = np.exp(0.1 * np.random.default_rng(1).standard_normal(1000))
    norm[500] = 8.0
    (gradient,) = incidents(DESCENT * noise(0), grad_norm=norm)
    assert (gradient.kind, gradient.severity) == ("grad_spike", "info")


@pytest.mark.parametrize(
    ("key", "others"), [("actor/kl_loss", {}), ("loss", {"reward": STEP}), ("value_loss", {"episode_reward": STEP})]
)
def test_losses_of_reinforcement_learning_may_rise_and_wander(key: str, others: dict[str, np.ndarray]) -> None:
    kl = (0.0005 + 0.03 * (1.0 - np.exp(-STEP / 100.0))) * noise(0, 0.15)
    value = np.abs(5.0 + 3.0 * np.sin(STEP / 60.0) + 5 * (noise(1, 0.2) - 1))
    for loss in (kl, value):
        assert incidents(loss, key, **others) == []
    kl[700:] = np.nan
    assert [i.kind for i in incidents(kl, key, **others)] == ["nonfinite"]


def test_rewards_of_given_answers_are_no_reinforcement_learning() -> None:
    loss = DESCENT * noise(0)
    loss[500:] *= 1.5
    others = {"rewards/chosen": STEP, "rewards/rejected": -STEP, "rewards/margins": 2 * STEP, "rewards/accuracies": STEP / 1000}
    assert [i.kind for i in incidents(loss, **others)] == ["level_shift"]


def test_thresholds_grow_with_the_points() -> None:
    assert grown(5.2, 10) == grown(5.2, 2000) == pytest.approx(5.2)
    assert 6.2 < grown(5.2, 1_000_000) < 6.5 and grown(2.9, 1_000_000, 2) < grown(2.9, 1_000_000)


def test_a_long_record_is_seen_as_a_whole() -> None:
    """Three windows: events at the seams and within are found once, noise alone gives none."""
    n = 3 * WINDOW
    loss = (3.0 + 7.0 * np.exp(-np.arange(n) / 20_000.0)) * noise(3, n=n)
    places = [WINDOW - 3, WINDOW + OVERLAP - 2, 2 * WINDOW, n - 40_000]
    for at in places:
        loss[at : at + 6] += 1.0
    assert [(i.kind, i.start_step, i.end_step) for i in incidents(loss)] == [("spike", at, at + 5) for at in places]
