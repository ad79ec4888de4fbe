"""What moved first, what coincided, and what the log cannot show."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stabilitylens._postmortem import postmortem
from stabilitylens.explanation import cannot_show, coincidences, contexts, movements
from stabilitylens.explanation._scan import scan
from stabilitylens.explanation._window import Window, even, window
from stabilitylens.incidents import Incident
from stabilitylens.run import Event, Run, Series
from tests import run_builders as runs

START = 200


def spike(start: int = START, peak: int | None = None, metric: str = "loss", kind: str = "spike", **other) -> Incident:
    peak = start if peak is None else peak
    fields = dict(
        start_step=start, end_step=peak + 5, start_index=start, end_index=peak + 5, peak_step=peak, peak_index=peak, width=3,
        magnitude=20.0, recovery="fast", cost_steps=5, severity="warning", confidence=1.0, explanation="loss rose",
    )
    return Incident(kind, metric, **fields | other)


def noisy(places: int = 1, n: int = 300, seed: int = 0, size: float = 0.05) -> np.ndarray:
    return np.exp(size * np.random.default_rng(seed).normal(size=(n, places)))


def run_of(**series: np.ndarray) -> Run:
    made = {}
    for name, values in series.items():
        axes = ("layer",) if values.ndim == 2 else ()
        made[f"{name}/layer" if axes else name] = Series(f"{name}/layer" if axes else name, np.arange(len(values)), values, axes)
    return Run("runs/made", made, runs.header())


@pytest.mark.parametrize("lead", [1, 3, 8])
@pytest.mark.parametrize("layer", [0, 2])
def test_the_layer_that_moved_first_is_named_with_its_lead(lead: int, layer: int) -> None:
    values, other = noisy(4), noisy(4, seed=1)
    values[START - lead :, layer] *= 3
    other[START + 1 :] *= 3
    run = run_of(loss=noisy(seed=2)[:, 0], update_rms=values, resid_rms=other)
    moved, asked = movements(run, spike(peak=START + 2))
    assert asked == 2
    assert (moved[0].series, moved[0].where.layer, moved[0].lead, moved[0].within) == ("update_rms/layer", layer, lead, 1)
    assert moved[0].early and moved[0].places == (1, 4) and moved[0].after > 2 * moved[0].before
    assert (moved[1].series, moved[1].early, moved[1].places) == ("resid_rms/layer", False, (4, 4))


def test_a_local_jump_is_seen_where_the_whole_is_quiet() -> None:
    """One of 24 equal layers times 1.8 moves the norm of all by 4 %."""
    layers = noisy(24, size=0.03)
    layers[START - 4 :, 17] *= 1.8
    whole = np.sqrt((layers**2).sum(1)) * noisy(seed=4)[:, 0]
    run = run_of(loss=noisy(seed=3)[:, 0], grad_norm=whole, grad_rms=layers)
    moved, _ = movements(run, spike())
    assert moved[0].series == "grad_rms/layer" and moved[0].where.layer == 17 and moved[0].lead == 4
    assert all(m.series != "grad_norm" for m in moved if m.early)


def memory(kind: str, n: int, places: int, rng: np.random.Generator) -> np.ndarray:
    e = rng.normal(size=(n, places))
    if kind == "heavy":
        return np.exp(0.05 * rng.standard_t(4, size=(n, places)))
    if kind == "walk":
        return np.exp(0.02 * np.cumsum(e, axis=0))
    if kind == "smooth":
        return np.exp(0.002 * np.cumsum(np.cumsum(e, axis=0), axis=0))
    if kind == "decay":
        return 2 + 3 * np.exp(-(np.arange(n)[:, None] + 50) / 60) * np.exp(0.02 * e)
    return np.exp(0.05 * e)


@pytest.mark.parametrize("kind", ["plain", "heavy", "walk", "smooth", "decay"])
@pytest.mark.parametrize("n", [24, 88])
def test_false_discoveries_are_kept_in_check(kind: str, n: int) -> None:
    """Of 600 series in which nothing happened at most 2 % are said to have moved, whatever their noise and memory."""
    series = memory(kind, n, 600, np.random.default_rng(5))
    run = Run("runs/calm", {"x/layer": Series("x/layer", np.arange(n), series, ("layer",))}, runs.header())
    moved, asked = movements(run, spike(start=n - 3, peak=n - 1))
    assert asked == 1 and sum(m.places[0] for m in moved) <= 0.02 * 600


def test_a_value_that_became_infinite_or_nan_moved_beyond_measure() -> None:
    layers, norm = noisy(3), noisy(seed=1)[:, 0]
    layers[START - 1, 1], norm[START:] = np.inf, np.nan
    moved, _ = movements(run_of(loss=noisy(seed=2)[:, 0], resid_absmax=layers, grad_norm=norm), spike())
    first, second = moved
    assert (first.series, first.where.layer, first.lead, first.sigma) == ("resid_absmax/layer", 1, 1, np.inf)
    assert (second.series, second.lead) == ("grad_norm", 0) and np.isnan(second.after)


def test_what_was_not_observed_did_not_move() -> None:
    layers = noisy(3)
    layers[:, 0] = np.nan
    layers[START - 10 :, 1] = np.nan
    assert movements(run_of(loss=noisy(seed=2)[:, 0], resid_rms=layers), spike()) == ([], 1)


def test_a_loss_that_falls_is_no_cause_of_a_gradient_spike() -> None:
    loss = noisy()[:, 0]
    loss[START - 2 :] /= 2
    moved, _ = movements(run_of(loss=loss, grad_norm=noisy(seed=1)[:, 0]), spike(metric="grad_norm"))
    assert moved == []


def test_too_few_points_before_it_are_said_and_not_guessed_from() -> None:
    run = run_of(loss=noisy()[:, 0], grad_norm=noisy(seed=1)[:, 0])
    early = spike(start=5)
    assert movements(run, early) == ([], 0)
    assert any("5 points before it" in said for said in cannot_show(run, early, 0))


@settings(max_examples=40, deadline=None)
@given(arrays(np.float64, (30, 2), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_no_series_breaks_the_scan(values: np.ndarray) -> None:
    found = scan(Window(np.arange(30), values, 18, 27, (2,)), 18, 27)
    assert np.all((found.p >= 0) & (found.p <= 1)) and np.all((found.onset >= 18) & (found.onset < 27))


@given(st.floats(1e-6, 1e6))
def test_positive_values_are_even_whatever_their_unit(unit: float) -> None:
    values = noisy(1, 20)
    assert np.allclose(np.diff(even(values), axis=0), np.diff(even(unit * values), axis=0))


def test_a_window_reads_no_more_of_an_array_than_it_needs() -> None:
    class Counted(np.ndarray):
        read: list[int] = []

        def __getitem__(self, key):
            self.read.append(key.stop - key.start)
            return super().__getitem__(key)

    values = np.ones((5000, 3)).view(Counted)
    assert window(Series("x", np.arange(5000), values, ("layer",)), 4000, 4003) is not None
    assert sum(Counted.read) < 100


def kinds(run: Run, incident: Incident, incidents=()) -> dict[str, float | None]:
    return {each.kind: each.size for each in coincidences(run, incident, incidents)}


def with_scalars(**scalars: np.ndarray) -> Run:
    return run_of(loss=noisy()[:, 0], **scalars)


def test_a_jump_of_the_learning_rate_is_told_with_its_factor() -> None:
    lr = np.full(300, 1e-3)
    lr[START - 1 :] *= 30
    run = with_scalars(lr=lr)
    assert kinds(run, spike()) == {"lr_jump": pytest.approx(30)}
    assert "× 30" in coincidences(run, spike())[0].text and coincidences(run, spike())[0].step == START - 1
    assert kinds(run, spike(start=START + 60)) == {} == kinds(run, spike(start=START - 20))


def test_a_schedule_is_no_jump_and_its_peak_is_told() -> None:
    steps = np.arange(300)
    lr = np.where(steps < START, (steps + 1) / START, 0.5 * (1 + np.cos((steps - START) / 100 * np.pi)))
    assert kinds(with_scalars(lr=lr), spike(start=START + 3)) == {"lr_peak": 1.0}
    assert kinds(with_scalars(lr=lr), spike(start=8)) == {}


@pytest.mark.parametrize(("at", "start"), [(0, 28), (0, -4), (0, 3)], ids=["noticed late", "placed too early", "placed well"])
def test_the_jump_before_a_slow_rise_is_told_wherever_its_start_is_placed(at: int, start: int) -> None:
    after = np.arange(1000) - 500
    loss = (3 + 0.5 * (1 - np.exp(-np.maximum(after, 0) / 30))) * noisy(1, 1000, size=0.01)[:, 0]
    run = run_of(loss=loss, lr=np.where(after < 0, 1e-4, 1e-3))
    incident = spike(start=500 + start, peak=900, kind="drift")
    assert kinds(run, incident) == {"lr_jump": pytest.approx(10)}
    assert kinds(run, spike(start=700, peak=900, kind="drift")) == {} == kinds(run, spike(start=528, peak=530))


def test_a_jump_after_the_loss_was_up_is_no_cause() -> None:
    after = np.arange(1000) - 500
    loss = (3 + 2 * (1 - np.exp(-np.maximum(after, 0) / 10))) * noisy(1, 1000, size=0.01)[:, 0]
    run = run_of(loss=loss, lr=np.where(after < 60, 1e-4, 1e-3))
    assert kinds(run, spike(start=500, peak=900, kind="divergence")) == {}


def test_a_climb_of_several_steps_is_told_and_a_warm_up_is_none() -> None:
    steps = np.arange(300)
    climb = 1e-4 * 1.5 ** np.clip(steps - START + 8, 0, 6)
    (told,) = coincidences(with_scalars(lr=climb), spike())
    assert told.kind == "lr_jump" and told.size == pytest.approx(1.5**6) and "from step 189 to 200" in told.text
    assert kinds(with_scalars(lr=1e-5 * (steps + 1)), spike(start=25)) == {}


def test_loss_scale_skips_resume_and_epoch_are_told() -> None:
    scale = np.full(300, 65536.0)
    scale[START:] /= 2
    run = with_scalars(loss_scale=scale, epoch=np.arange(300) / START)
    run.events = [Event(START - 1, "step_skipped"), Event(START, "step_skipped"), Event(START - 5, "resume"), Event(20, "resume")]
    assert kinds(run, spike()) == {"loss_scale": 0.5, "steps_skipped": 2.0, "resume": None, "epoch_edge": 1.0}
    assert kinds(run, spike(start=100)) == {}


def test_incidents_at_one_interval_have_a_period() -> None:
    regular = [spike(start=s) for s in (50, 100, 200, 250)]
    assert kinds(with_scalars(), regular[2], regular) == {"period": 50.0}
    chance = [spike(start=s) for s in (50, 93, 200, 261)]
    assert kinds(with_scalars(), chance[2], chance) == {}


def test_a_period_bears_a_stranger_and_a_late_detection_but_no_chance() -> None:
    comb = [spike(start=s) for s in (100, 202, 300, 401, 500, 640, 700)]
    assert kinds(with_scalars(), comb[0], comb)["period"] == pytest.approx(100, abs=3)
    assert kinds(with_scalars(), comb[5], comb) == {}
    coarse = Run("runs/coarse", {"loss": Series("loss", np.arange(0, 3000, 10), noisy()[:, 0])})
    few = [spike(start=s) for s in (100, 120, 160, 180)]
    assert kinds(coarse, few[0], few) == {}, "every step is a multiple of a log's interval"


def test_all_skipped_steps_of_an_incident_are_counted() -> None:
    run = with_scalars()
    run.events = [Event(step, "step_skipped") for step in range(START, START + 50)]
    skipped = spike(end_step=START + 49, metric="steps_skipped", kind="steps_skipped")
    assert kinds(run, skipped) == {"steps_skipped": 50.0}


def test_what_the_log_cannot_show_follows_from_the_log() -> None:
    sparse = Run("runs/sparse", {"loss": Series("loss", np.arange(0, 3000, 10), noisy()[:, 0])})
    said = " ".join(cannot_show(sparse, spike(start=2000, start_index=200), 0))
    assert "every 10 steps" in said and "no series by layer" in said and "the learning rate and the gradient norm" in said
    full = " ".join(cannot_show(runs.healthy(), spike(), 9))
    assert "Layers are sampled every 10 steps" in full and "every 1 steps" not in full and "no series by layer" not in full


def test_resumes_and_the_many_have_no_context() -> None:
    run = with_scalars(grad_norm=noisy(seed=1)[:, 0])
    incidents = [spike(kind="resume")] + [spike(start=s, severity="info", cost_steps=1) for s in range(60, 260, 8)] + [spike(start=260, severity="error")]
    found = contexts(run, incidents)
    assert found[0] is None and found[-1] is not None and sum(context is not None for context in found) == 20


def test_the_report_tells_it_in_all_forms() -> None:
    run = runs.healthy()
    loss = run.series["loss"].values
    loss[150:170] = 9 - 0.3 * np.arange(20)
    run.series["lr"] = runs.scalar("lr", np.where(np.arange(runs.STEPS) < 149, 1e-3, 1e-2))
    report = postmortem(run)
    data = json.loads(report.to_json())
    told = next(i for i in data["runs"][0]["incidents"] if i["metric"] == "loss")
    assert told["context"]["coincident"][0]["kind"] == "lr_jump" and told["context"]["cannot_show"]
    text, page = " ".join(str(report).split()), report.to_html()
    for said in ("lr went from 0.001 to 0.01", "What the log cannot show", "Suspects", "First suspect: learning-rate."):
        assert said in page
    assert "coincided: lr went from 0.001 to 0.01" in text and "Suspects" in text and "to settle it:" in text
    assert "first suspect: learning-rate" in text
