"""Every metric: its page, its closed form against plain NumPy, NaN where nothing was observed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitylens.metrics import METRICS, Metric, compute
from stabilitylens.moments import Moments
from tests import metric_cases as cases

UNITS = {"1", "nat", "s", "token"}
AXES = {"", "layer", "group", "attention head", "attention kv_head", "layer branch", "norm", "layer expert"}
SHAPES = {
    "": (), "layer": (cases.LAYERS,), "group": (1,), "layer branch": (cases.LAYERS, cases.BRANCHES),
    "norm": (cases.NORMS,), "layer expert": (cases.LAYERS, cases.EXPERTS),
    "attention head": (cases.CALLS, cases.HEADS), "attention kv_head": (cases.CALLS, cases.KV_HEADS),
}
TAPPED = [m for m in METRICS if not m.every_step]
every = pytest.mark.parametrize("member", list(METRICS), ids=lambda m: m.name)
tapped = pytest.mark.parametrize("member", TAPPED, ids=lambda m: m.name)


def values(member: Metric, rows: dict) -> dict[str, np.ndarray]:
    """Its arrays by their axes."""
    out = compute(cases.sample(rows))
    return {a: out[f"{member.name}/{a.replace(' ', '_')}" if a else member.name] for a in member.axes}


def test_those_of_the_design_are_there():
    wanted = (
        "loss lr loss_scale tokens step_time grad_norm grad_norm_clipped clip_coef resid_grad_norm param_norm "
        "update_ratio update_rms adam_rms adam_eps_share query_norm key_norm value_norm max_attn_logit attn_entropy "
        "attn_entropy_ratio resid_rms resid_absmax branch_ratio log_z output_logit_absmax nonfinite_count "
        "query_proj_norm key_proj_norm max_attn_logit_precap act_kurtosis norm_gain dyt_alpha expert_load router_entropy "
        "expert_grad_norm"
    )
    assert set(wanted.split()) <= set(METRICS.names())


@every
def test_has_a_page_a_unit_and_axes(member: Metric):
    assert member.function.__module__ == f"stabilitylens.metrics.{member.name}"
    assert member.unit in UNITS and member.axes and set(member.axes) <= AXES
    assert len(member.definition) > 30
    if not member.every_step:
        assert "$" in member.definition
    assert member.page.count("$") % 2 == 0


@every
def test_every_step_metrics_are_what_they_were_given(member: Metric):
    if member.every_step:
        assert member.axes == ("",) and member.function(np.array(2.5)) == 2.5
    else:
        assert member.name in cases.ORACLES, "a metric with taps needs a closed form in metric_cases.ORACLES"


@tapped
@pytest.mark.parametrize("seed", range(3))
def test_closed_form(member: Metric, seed: int):
    raw = cases.raw(seed)
    for axes, got in values(member, cases.taps(raw)).items():
        assert isinstance(got, np.ndarray) and got.dtype == np.float64 and got.shape == SHAPES[axes]
        np.testing.assert_allclose(got, cases.ORACLES[member.name](raw, axes), rtol=1e-12)


@tapped
def test_nothing_observed_is_nan(member: Metric):
    for got in values(member, cases.empty(cases.taps(cases.raw()))).values():
        assert np.all(np.isnan(got))


@tapped
def test_one_unobserved_row_is_nan_and_the_others_are_not(member: Metric):
    rows = cases.taps(cases.raw())
    nothing = cases.empty(rows)
    first = {
        tap: type(s)(*(np.where(_first(tap, getattr(s, n)), getattr(nothing[tap], n), getattr(s, n)) for n in s.names()))
        for tap, s in rows.items()
    }
    for axes, got in values(member, first).items():
        if axes not in ("", "group"):
            np.testing.assert_array_equal(np.isnan(got), _first("", got))


def _first(tap: str, values: np.ndarray) -> np.ndarray:
    """The first entry; of parameters, those of the first block."""
    index = np.arange(np.size(values)).reshape(np.shape(values))
    return index < (2 if tap in ("param", "grad", "grad_clipped", "update", "scaled_update", "adam") else 1)


@tapped
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nonfinite_input_is_never_hidden(member: Metric, bad: float):
    rows = {
        tap: replace(s, **{n: np.full(np.shape(getattr(s, n)), bad) for n in _sums(s)})
        for tap, s in cases.taps(cases.raw()).items()
    }
    for got in values(member, rows).values():
        assert not np.any(np.isfinite(got))


def _sums(rows) -> list[str]:
    return [n for n in rows.names() if n not in ("count", "rows", "rows_gt1", "tokens")]


@pytest.mark.parametrize("name", cases.DEGREE)
@pytest.mark.parametrize("scale", [-3.0, 1e-3, 7.0])
def test_scaling_the_tensors_scales_the_metric(name: str, scale: float):
    member = METRICS[name]
    one, scaled = values(member, cases.taps(cases.raw())), values(member, cases.taps(cases.raw(scale=scale)))
    for axes in member.axes:
        np.testing.assert_allclose(scaled[axes], abs(scale) ** cases.DEGREE[name] * one[axes], rtol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.randoms(use_true_random=False))
def test_micro_batches_combine_in_any_order(parts: int, random):
    batches = [cases.taps(cases.raw(seed)) for seed in range(parts)]
    in_order = [compute(cases.sample(_merge(batches))), compute(cases.sample(_merge(random.sample(batches, parts))))]
    for name, value in in_order[0].items():
        np.testing.assert_allclose(in_order[1][name], value, rtol=1e-12)


def _merge(batches: list[dict]) -> dict:
    merged = cases.empty(batches[0])
    for batch in batches:
        merged = {tap: merged[tap].combine(rows) for tap, rows in batch.items()}
    return merged


def test_two_halves_of_a_batch_are_the_whole():
    raw = cases.raw()
    halves = [cases.moments(raw.resid[:, part], 1) for part in (slice(0, 2), slice(2, 6))]
    got = METRICS["resid_rms"].function(halves[0].combine(halves[1]))
    np.testing.assert_allclose(got, cases.ORACLES["resid_rms"](raw, "layer"), rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-6, 1e3))
def test_entropy_is_bounded(seed: int, scale: float):
    rows = cases.taps(cases.raw(seed, scale))
    ratio, entropy = (values(METRICS[n], rows)["attention head"] for n in ("attn_entropy_ratio", "attn_entropy"))
    assert np.all((ratio >= 0) & (ratio <= 1 + 1e-12))
    assert np.all((entropy >= 0) & (entropy <= np.log(cases.KEYS) + 1e-12))


@pytest.mark.parametrize("keys", [2, 16, 2048])
def test_uniform_attention_has_ratio_one_at_any_length(keys: int):
    seen = np.log(np.arange(2, keys + 1))
    rows = cases.attention(cases.raw())
    uniform = replace(
        rows, rows=np.full_like(rows.rows, keys), rows_gt1=np.full_like(rows.rows, keys - 1),
        sum_entropy=np.full_like(rows.rows, seen.sum()), sum_entropy_ratio=np.full_like(rows.rows, len(seen)),
    )
    assert np.all(METRICS["attn_entropy_ratio"].function(uniform) == 1.0)


def test_adam_rms_is_one_at_the_first_step_and_stays_under_its_ceiling():
    beta2, g = 0.95, np.random.default_rng(0).normal(size=50)
    adam = lambda g, v: METRICS["adam_rms"].function(  # noqa: E731
        cases.stack([cases.AdamMoments(np.array(50.0), np.asarray(np.sum(g**2 / v)), np.array(0.0))])
    )[0]
    assert adam(g, g**2) == pytest.approx(1.0)
    for k in (2.61, 1e6):
        v = beta2 * g**2 + (1 - beta2) * (k * g) ** 2
        assert adam(k * g, v) == pytest.approx(k / np.sqrt(beta2 + (1 - beta2) * k**2))
        assert adam(k * g, v) <= (1 - beta2) ** -0.5


def test_clip_coef_says_how_much_was_clipped():
    grad = cases.moments(np.array([3.0, 4.0]), 0)
    coefficient = METRICS["clip_coef"].function
    assert coefficient(grad, cases.moments(np.array([0.6, 0.8]), 0)) == pytest.approx(0.2)
    assert coefficient(grad, grad) == 1.0
    zero = cases.moments(np.zeros(2), 0)
    with np.errstate(all="ignore"):
        assert np.isnan(coefficient(zero, zero))


def test_a_ratio_to_nothing_is_undefined_not_infinite():
    zero, one = cases.moments(np.zeros((1, 3)), 1), cases.moments(np.ones((1, 3)), 1)
    for name in ("update_ratio", "branch_ratio"):
        with np.errstate(all="ignore"):
            assert np.isnan(METRICS[name].function(one, zero)).all()
            assert METRICS[name].function(zero, one) == 0


def test_a_query_with_a_nan_leaves_no_largest_logit():
    rows = cases.attention(cases.raw())
    poisoned = replace(rows, sum_lse=np.where(np.arange(cases.HEADS) == 1, np.nan, rows.sum_lse))
    got = METRICS["max_attn_logit"].function(poisoned)
    assert np.isnan(got[:, 1]).all() and np.isfinite(got[:, [0, 2, 3]]).all()


def test_a_parameter_without_gradient_adds_nothing():
    raw = cases.raw()
    rows = cases.taps(raw)
    grads: Moments = cases.stack([cases.moments(g, 0) for g in raw.grad])
    keep = np.arange(7) != 6
    rows["grad"] = type(grads)(
        *(np.where(keep, getattr(grads, n), e) for n, e in zip(grads.names(), grads.identity(), strict=True))
    )
    got = compute(cases.sample(rows))
    assert got["grad_norm"] == pytest.approx(np.linalg.norm(np.concatenate(raw.grad[:6])))
    assert np.isnan(got["grad_norm/group"]).all()


def test_what_no_tap_delivered_is_left_out():
    rows = cases.taps(cases.raw())
    got = compute(cases.sample({"resid": rows["resid"]}))
    assert set(got) == {"resid_rms/layer", "resid_absmax/layer", "nonfinite_count/layer"}


def test_rows_that_see_no_key_are_counted_and_their_absence_is_zero():
    rows = cases.attention(cases.raw())
    masked = METRICS["masked_rows"].function
    some = replace(rows, masked_rows=np.arange(8.0).reshape(rows.rows.shape))
    np.testing.assert_array_equal(masked(some), np.arange(8.0).reshape(rows.rows.shape))
    everything = replace(rows, rows=np.zeros_like(rows.rows), masked_rows=np.full_like(rows.rows, 5.0))
    assert np.all(masked(everything) == 5) and np.all(masked(rows) == 0)
