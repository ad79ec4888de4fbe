"""Events with a known place, height and kind: found, placed, measured, said once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitylens.incidents import DETECTORS, Incident, detect, spike_score
from stabilitylens.run import Event, Run, Series


def descent(n: int = 1000, seed: int = 0, level: float = 0.01) -> np.ndarray:
    step = np.arange(n)
    noise = np.random.default_rng(seed).standard_normal(n)
    return (2.4 + 8.0 / np.sqrt(1 + step / 2)) * (1 + level * noise)


def run(loss: np.ndarray, steps: np.ndarray | None = None, **others: np.ndarray) -> Run:
    steps = np.arange(len(loss)) if steps is None else steps
    series = {name: Series(name, steps, np.asarray(values, float)) for name, values in {"loss": loss, **others}.items()}
    return Run("memory", series)


def found(loss: np.ndarray, **others: np.ndarray) -> list[Incident]:
    return [incident for incident in detect(run(loss, **others)) if incident.kind != "plateau"]


def only(loss: np.ndarray, **others: np.ndarray) -> Incident:
    incidents = found(loss, **others)
    assert len(incidents) == 1, [incident.explanation for incident in incidents]
    return incidents[0]


@pytest.mark.parametrize("at", [60, 120, 600, 990])
def test_one_bad_batch_is_an_outlier(at: int) -> None:
    loss = descent()
    loss[at] += 0.5
    incident = only(loss)
    assert (incident.kind, incident.severity) == ("outlier", "info")
    assert (incident.start_step, incident.peak_step, incident.end_step, incident.width) == (at, at, at, 1)
    assert incident.recovery == "fast" and incident.cost_steps == 1


@pytest.mark.parametrize(("at", "width"), [(60, 3), (120, 5), (600, 12), (700, 60)])
def test_a_spike_has_its_place_width_and_cost(at: int, width: int) -> None:
    loss = descent()
    loss[at : at + width] += 0.6
    incident = only(loss)
    assert (incident.kind, incident.severity) == ("spike", "warning")
    assert (incident.start_step, incident.end_step) == (at, at + width - 1)
    assert abs(incident.width - width) <= 1 and incident.cost_steps == width
    assert incident.recovery == ("fast" if width <= 7 else "slow")


def test_a_spike_that_decays_slowly_is_one_event() -> None:
    loss = descent()
    loss[500:700] += 2.0 * np.exp(-np.arange(200) / 20.0)
    incident = only(loss)
    assert (incident.kind, incident.start_step, incident.recovery) == ("spike", 500, "slow")
    assert 30 <= incident.cost_steps <= 120


def test_magnitude_is_in_sigma_of_the_log_residual() -> None:
    loss = descent(level=0.01)
    loss[500:504] *= math.exp(0.20)
    assert only(loss).magnitude == pytest.approx(20, rel=0.3)


def test_the_explanation_has_the_numbers() -> None:
    loss = np.full(1100, 3.02) * (1 + 0.005 * np.random.default_rng(0).standard_normal(1100))
    loss[1003:1006] = 4.51, 4.30, 4.20
    told = only(loss).explanation
    assert "4.51" in told and "step 1003" in told and "back after 3 steps" in told and told.endswith(".")


def test_a_climb_is_told_from_its_first_step_to_its_highest() -> None:
    loss = np.full(1100, 3.02) * (1 + 0.005 * np.random.default_rng(0).standard_normal(1100))
    loss[1000:1008] = 3.4, 3.9, 4.4, 5.1, 4.6, 4.1, 3.7, 3.4
    assert "to 5.1 " in only(loss).explanation and "from step 1000 to step 1003" in only(loss).explanation


def test_steps_and_indices_differ_where_logs_are_sparse() -> None:
    loss = descent(400)
    loss[200:203] += 1.0
    incidents = detect(run(loss, steps=np.arange(400) * 10 + 5))
    assert [(i.start_step, i.start_index, i.end_step, i.cost_steps) for i in incidents] == [(2005, 200, 2025, 30)]


def test_every_single_step_spike_is_seen_in_a_sampled_record() -> None:
    """One step at 1003 where everything else is sampled every tenth step."""
    loss = descent(2000)
    loss[1003] = 6.0
    assert only(loss).peak_step == 1003


@pytest.mark.parametrize("tail", [1, 2, 20])
def test_nan_ending(tail: int) -> None:
    loss = descent()
    loss[-tail:] = np.nan
    incident = only(loss)
    assert (incident.kind, incident.start_step, incident.recovery) == ("nonfinite", 1000 - tail, "none")
    assert math.isnan(incident.magnitude) and incident.severity == "error"


def test_nan_does_not_blind_the_other_detectors() -> None:
    loss = descent()
    loss[300:305] = np.nan
    loss[310:314] += 1.0
    loss[800] = np.inf
    assert [(i.kind, i.start_step) for i in found(loss)] == [("nonfinite", 300), ("spike", 310), ("nonfinite", 800)]


@pytest.mark.parametrize("jump", [1.1, 1.15, 1.5, 2.0])
def test_a_jump_to_a_level_that_is_kept_is_a_level_shift(jump: float) -> None:
    loss = descent()
    loss[500:] *= jump
    incident = only(loss)
    assert (incident.kind, incident.severity) == ("level_shift", "warning")
    assert (incident.start_step, incident.end_step) == (500, 999)


@pytest.mark.parametrize("after", ["all is lost", "it goes on rising", "it never settles"])
def test_a_jump_that_is_more_than_a_shift_is_one_divergence(after: str) -> None:
    loss, step = descent(), np.arange(500)
    shapes = {"all is lost": np.full(500, 4.0), "it goes on rising": 1.3 + step / 500, "it never settles": 1.5 + 0.4 * np.sin(step / 12)}
    loss[500:] = loss[499] * shapes[after] * (1 + 0.01 * np.random.default_rng(1).standard_normal(500))
    incident = only(loss)
    assert (incident.kind, incident.severity) == ("divergence", "error") and incident.recovery in ("partial", "none")
    assert abs(incident.start_step - 500) <= 3 and incident.end_step == 999


def test_slow_divergence_is_placed_near_its_onset() -> None:
    loss = descent()
    loss[600:] = 3.0 * (1 + 0.10 * np.arange(400) / 200) * (1 + 0.01 * np.random.default_rng(1).standard_normal(400))
    incident = only(loss)
    assert incident.kind == "divergence" and abs(incident.start_step - 600) <= 60


def test_a_very_slow_rise_is_a_drift() -> None:
    loss = 3.0 * (1 + 0.08 * np.arange(3000) / 3000) * (1 + 0.01 * np.random.default_rng(1).standard_normal(3000))
    assert [i.kind for i in found(loss)] == ["drift"]


@pytest.mark.parametrize("loss", [[1.7, 11.5, 11.8, 11.5, 11.5, 12.2, 10.0, 10.9], [1.6, 1.4, 3.3, 6.4, 5.5, 4.9, 4.9, 4.6]])
def test_a_divergence_of_a_few_logs(loss: list[float]) -> None:
    incident = only(np.array(loss))
    assert incident.kind == "divergence" and incident.start_index in (1, 2)


def test_learning_rate_times_thirty_at_step_120() -> None:
    """The episode that detectors without detrending miss: a jump and a slow return, early on a steep curve."""
    loss = descent(400)
    loss[120:] += 1.2 * np.exp(-np.arange(280) / 15.0)
    incident = only(loss)
    assert incident.kind == "spike" and abs(incident.start_step - 120) <= 3


def test_loss_around_zero() -> None:
    loss = 0.01 * np.random.default_rng(0).standard_normal(500)
    loss[300:305] += 0.5
    incident = only(loss)
    assert incident.kind == "spike" and (incident.start_index, incident.end_index) == (300, 304)


def test_after_a_level_shift_a_spike_is_its_own_event() -> None:
    loss = 3.0 * (1 + 0.01 * np.random.default_rng(0).standard_normal(2000))
    loss[500:] *= 1.3
    loss[1500:1504] *= 1.5
    kinds = [(i.kind, i.start_step) for i in found(loss)]
    assert kinds[0] == ("level_shift", 500) and ("spike", 1500) in kinds and len(kinds) == 2


def test_gradient_spike() -> None:
    norm = np.exp(0.2 * np.random.default_rng(0).standard_normal(800))
    norm[400:403] *= 20
    incident = only(descent(800), grad_norm=norm)
    assert (incident.kind, incident.metric, incident.start_step) == ("grad_spike", "grad_norm", 400)


def test_nonfinite_gradient_norm_is_not_on_the_loss() -> None:
    norm = np.ones(300)
    norm[100] = np.inf
    incident = only(descent(300), grad_norm=norm)
    assert (incident.kind, incident.metric, incident.severity) == ("nonfinite", "grad_norm", "warning")


def test_collapse_to_zero() -> None:
    loss = np.concatenate([0.1 * np.random.default_rng(0).random(40) + 0.1, np.zeros(20)])
    assert [(i.kind, i.start_index, i.end_index) for i in found(loss)] == [("collapse", 40, 59)]


def test_plateau_and_resume() -> None:
    flat = run(10.4 * (1 + 0.001 * np.random.default_rng(0).standard_normal(200)))
    flat.events.append(Event(50, "resume"))
    assert [(i.kind, i.start_step) for i in detect(flat)] == [("plateau", 0), ("resume", 50)]


def test_repeated_skips() -> None:
    skipping = run(descent(300))
    skipping.events += [Event(step, "step_skipped") for step in range(100, 160, 2)]
    (incident,) = detect(skipping)
    assert (incident.kind, incident.start_step, incident.end_step, incident.cost_steps) == ("steps_skipped", 100, 158, 30)


@settings(deadline=None, max_examples=40)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1e308, 1e-308]), max_size=80),
)
def test_any_series_gives_incidents_with_a_place(values: list[float]) -> None:
    for incident in detect(run(np.array(values, dtype=float))):
        assert 0 <= incident.start_index <= incident.peak_index <= incident.end_index < len(values)
        assert incident.width >= 1 and incident.cost_steps >= 0 and 0 <= incident.confidence <= 1
        assert incident.explanation.endswith(".")


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 50), factor=st.sampled_from([1e-6, 0.5, 3.0, 1e6]))
def test_the_unit_of_the_loss_does_not_matter(seed: int, factor: float) -> None:
    loss = descent(500, seed, level=0.03)
    loss[300:304] *= 1.6
    places = [[(i.kind, i.start_index, i.end_index) for i in found(loss * by)] for by in (1.0, factor)]
    assert places[0] == places[1]


def test_every_detector_has_a_page() -> None:
    assert {"spike", "outlier", "divergence", "nonfinite", "grad_spike", "steps_skipped"} <= set(DETECTORS.names())
    for member in DETECTORS:
        assert len(member.page) > 40 and member.page.splitlines()[0].endswith(".")


def test_olmos_spike_score_counts_points_on_both_sides() -> None:
    loss = 3.0 + 0.01 * np.random.default_rng(0).standard_normal(2000)
    loss[[1500, 1501, 1700]] += 1.0
    loss[1900] -= 1.0
    score = spike_score(Series("loss", np.arange(2000), loss))
    spread = [np.std(loss[at - 1000 : at]) for at in (1500, 1501, 1700, 1900)]
    assert max(spread) < 1 / 7 and score == pytest.approx(4 / 1900)
    assert spike_score(Series("loss", np.arange(100), loss[:100])) is None
    assert spike_score(Series("loss", np.arange(300), np.full(300, 2.5))) == 0.0


@pytest.mark.parametrize("scaler", [0, 1])
def test_skips_at_the_start_are_a_search_and_later_ones_a_fault(scaler: int) -> None:
    skipping = run(descent(300))
    skipping.events += [Event(step, "step_skipped") for step in range(scaler * 150, scaler * 150 + 10)]
    (incident,) = detect(skipping)
    assert (incident.kind, incident.severity) == ("steps_skipped", ("info", "warning")[scaler])


def test_waves_do_not_hide_each_other() -> None:
    """Four bumps in noise of a quarter of the level, of which each widens what is usual for the others."""
    rng = np.random.default_rng(1)
    loss = 3.0 * np.exp(0.12 * rng.standard_normal(240))
    for at, width in ((60, 6), (90, 6), (130, 6), (160, 30)):
        loss[at : at + width] *= 2.2
    starts = [i.start_index for i in found(loss)]
    assert all(any(abs(start - at) <= 3 for start in starts) for at in (60, 90, 130, 160))


@pytest.mark.parametrize("heavy", [False, True])
def test_a_high_point_is_told_by_the_tail_of_its_own_run(heavy: bool) -> None:
    """Ten sigma are a bad batch in Gaussian noise, and one of many in that of single language-model batches."""
    rng = np.random.default_rng(4)
    sample = rng.standard_normal(1000)
    if heavy:
        high = rng.random(1000) < 0.0145
        sample = np.where(high, 4.0 + 2.0 * rng.exponential(size=1000), sample)
    sample[300] = 13.0
    bad = next(i for i in found(3.0 * np.exp(0.01 * sample)) if i.start_index == 300)
    assert bad.kind == "outlier" and ("its noise alone" in bad.explanation) == heavy
    assert (bad.confidence > 0.5) == (not heavy)
