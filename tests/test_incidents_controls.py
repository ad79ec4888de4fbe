"""Healthy curves, and curves that are odd but no incident: nothing may alarm."""

from __future__ import annotations

import numpy as np
import pytest

from stabilitylens.incidents import Incident, detect
from stabilitylens.run import Event, Run, Series

QUIET = {"plateau", "resume"}


def incidents(loss: np.ndarray, **others: np.ndarray) -> list[Incident]:
    steps = np.arange(len(loss))
    series = {name: Series(name, steps, np.asarray(values, float)) for name, values in {"loss": loss, **others}.items()}
    return [incident for incident in detect(Run("memory", series)) if incident.kind not in QUIET]


def noise(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n)


def fast_descent(seed: int) -> np.ndarray:
    step = np.arange(200)
    return (2.0 + 8.8 * np.exp(-step / 30.0)) * (1 + 0.02 * noise(200, seed))


def warmup_ramp(seed: int) -> np.ndarray:
    """Flat while the learning rate is small, then a power law."""
    step = np.maximum(np.arange(1000) - 60.0, 0.0)
    return (2.5 + 8.3 / np.sqrt(1 + step / 20)) * (1 + 0.01 * noise(1000, seed))


def warmup_bump(seed: int) -> np.ndarray:
    step = np.arange(600)
    bump = 2.0 * np.exp(-(((step - 14) / 6.0) ** 2))
    return (2.5 + 8.3 / np.sqrt(1 + np.maximum(step - 20.0, 0) / 10) + bump) * (1 + 0.01 * noise(600, seed))


def mixed_sources(seed: int) -> np.ndarray:
    """Two data sets whose losses differ by half, a batch from either."""
    second = np.random.default_rng(seed).random(1000) < 0.3
    return (2.0 + 2.0 * np.exp(-np.arange(1000) / 200)) * np.where(second, 1.5, 1.0) * (1 + 0.02 * noise(1000, seed))


def rare_source(seed: int) -> np.ndarray:
    """One batch in twenty from a harder data set."""
    second = np.random.default_rng(seed).random(1000) < 0.05
    return 2.5 * np.where(second, 1.4, 1.0) * (1 + 0.02 * noise(1000, seed))


def lr_drop(seed: int) -> np.ndarray:
    return np.where(np.arange(800) < 400, 3.0, 2.4) * (1 + 0.01 * noise(800, seed))


def staircase(seed: int) -> np.ndarray:
    return 2.0 * 0.8 ** (np.arange(1200) // 200) * (1 + 0.03 * noise(1200, seed))


def sawtooth(seed: int) -> np.ndarray:
    """Within each epoch of 100 steps the loss falls by a fifth, then it starts again, a little lower."""
    step = np.arange(1000)
    return (2.0 - 0.02 * (step // 100)) * (1 - 0.2 * (step % 100) / 100) * (1 + 0.02 * noise(1000, seed))


def improvement(seed: int) -> np.ndarray:
    """Drops of all shapes: one log, a dip of 20, and for good."""
    loss = 3.0 * (1 + 0.01 * noise(900, seed))
    loss[300] *= 0.5
    loss[500:520] *= 0.7
    loss[700:] *= 0.6
    return loss


def rounded(seed: int) -> np.ndarray:
    return np.round((2.0 + np.exp(-np.arange(1000) / 150)) * (1 + 0.004 * noise(1000, seed)), 2)


def coarse(seed: int) -> np.ndarray:
    return np.round(12.65 + 0.03 * noise(3000, seed), 1)


def reward_noise(seed: int) -> np.ndarray:
    return 0.01 * np.random.default_rng(seed).standard_t(5, 400)


def moving_average(seed: int) -> np.ndarray:
    """What a tool prints that smooths: neighbours correlate at 0.9."""
    raw = (2.4 + np.exp(-np.arange(3000) / 300)) * (1 + 0.02 * noise(3000, seed))
    return np.convolve(raw, np.full(20, 1 / 20), mode="valid")


def evaluation_only(seed: int) -> np.ndarray:
    """A file of evaluations: few points, smooth, and flat at the end."""
    return (1.8 + 2.0 * np.exp(-np.arange(40) / 6.0)) * (1 + 0.004 * noise(40, seed))


def warmup_stable_decay(seed: int) -> np.ndarray:
    """A long constant stage, then a cool-down in which the loss falls fast."""
    step = np.arange(1200)
    return (2.6 + 6.0 / np.sqrt(1 + step / 8.0)) * np.interp(step, [0, 900, 1200], [1.0, 1.0, 0.88]) * (1 + 0.01 * noise(1200, seed))


def stages_of_data(seed: int) -> np.ndarray:
    """Three stages, each on easier data, with a short settling after each change."""
    step = np.arange(1500)
    return np.array([2.8, 2.3, 1.9])[step // 500] * (1 + 0.04 * np.exp(-(step % 500) / 60.0)) * (1 + 0.012 * noise(1500, seed))


def warm_restarts(seed: int) -> np.ndarray:
    """A cosine schedule with restarts: at each the loss rises a little, and then falls below what it was."""
    step = np.arange(1600)
    cycle, within = step // 200, (step % 200) / 200.0
    return (2.6 - 0.05 * cycle) * (1 + 0.05 * (1 + np.cos(np.pi * within)) / 2) * (1 + 0.01 * noise(1600, seed))


def length_grouped(seed: int) -> np.ndarray:
    """Batches by length: within each fifty the sequences get shorter, and their loss higher."""
    step = np.arange(1200)
    return (2.0 + np.exp(-step / 200.0)) * (0.94 + 0.12 * (step % 50) / 50.0) * (1 + 0.02 * noise(1200, seed))


def length_grouped_at_random(seed: int) -> np.ndarray:
    """Each batch holds sequences of one length, any of eight: levels differ by a quarter."""
    length = np.random.default_rng(seed).integers(0, 8, 1000)
    return (1.8 + np.exp(-np.arange(1000) / 150.0)) * (1 + 0.035 * length) * (1 + 0.02 * noise(1000, seed))


CURVES = [
    fast_descent, warmup_ramp, warmup_bump, mixed_sources, rare_source, lr_drop, staircase, sawtooth, improvement,
    rounded, coarse, reward_noise, moving_average, evaluation_only, warmup_stable_decay, stages_of_data, warm_restarts,
    length_grouped, length_grouped_at_random,
]  # fmt: skip


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.__name__)
def test_no_alarm(curve) -> None:
    found = {seed: incidents(curve(seed)) for seed in range(6)}
    assert not {seed: [i.explanation for i in some if i.severity != "info"] for seed, some in found.items() if some} or all(
        i.severity == "info" for some in found.values() for i in some
    ), found


@pytest.mark.parametrize("curve", [c for c in CURVES if c not in (reward_noise,)], ids=lambda curve: curve.__name__)
def test_not_even_an_outlier(curve) -> None:
    assert [i for seed in range(6) for i in incidents(curve(seed))] == []


@pytest.mark.parametrize("loss", [[2.0], [2.0, 1.9], [2.0, 1.9, 1.8], [3.0, 3.1, 2.9, 2.8], [2.5] * 300, [0.0] * 100])
def test_few_points_and_constants(loss) -> None:
    assert incidents(np.array(loss)) == []


def test_empty_series_and_no_loss() -> None:
    empty = Series("loss", np.array([], dtype=int), np.array([]))
    assert detect(Run("memory", {"loss": empty})) == []
    assert detect(Run("memory", {"lr": Series("lr", np.arange(5), np.ones(5))})) == []


def test_padding_is_no_divergence() -> None:
    """A metric that is logged on every tenth row only."""
    loss = np.full(1000, np.nan)
    loss[::10] = 3.0 / np.sqrt(1 + np.arange(100) / 10)
    assert incidents(loss) == []


def test_scaler_warmup_is_healthy() -> None:
    """A scaler that looks for its scale skips the first few steps."""
    run = Run("memory", {"loss": Series("loss", np.arange(200), fast_descent(0))})
    run.events += [Event(step, "step_skipped") for step in (0, 1, 2, 3, 4)]
    assert [i for i in detect(run) if i.kind not in QUIET] == []


def test_gradient_norm_that_halves_is_no_spike() -> None:
    """Accumulation doubled: half the noise from then on."""
    norm = np.exp(0.2 * noise(600, 0)) * np.where(np.arange(600) < 300, 2.0, 1.0)
    assert incidents(3.0 * (1 + 0.01 * noise(600, 1)), grad_norm=norm) == []


def test_other_losses_and_evaluations_are_not_the_loss() -> None:
    """What a value head, an evaluation every hundred steps or a reward does is no incident of the loss."""
    value = 0.3 * (1 + 0.02 * noise(600, 1))
    value[200:203] *= 8
    evaluation = np.full(600, np.nan)
    evaluation[::100] = 3.0, 2.5, 2.2, 2.9, 3.4, 3.9
    reward = np.cumsum(noise(600, 2))
    found = incidents(3.0 * (1 + 0.01 * noise(600, 0)), **{"loss/value": value, "loss/eval": evaluation, "reward": reward})
    assert found == []
