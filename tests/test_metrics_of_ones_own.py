"""A metric that somebody adds sees every field of the rows it asks for, however few the metrics of the package read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.hooks.selection import rows_for, selected
from stabilitylens.kernels import moments, norm_row, second_moments
from stabilitylens.metrics import METRICS, metric
from stabilitylens.moments import Moments

TAPS = {"resid": "layer", "resid_grad": "layer", "branch": "layer branch", "stream": "layer branch"} | dict.fromkeys(
    ("param", "grad", "grad_clipped", "update", "scaled_update"), "layer"
)


@pytest.fixture
def theirs() -> Iterator[None]:
    before = set(METRICS.names())
    yield
    for name in set(METRICS.names()) - before:
        del METRICS._members[name]


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("scaled", [False, True], ids=["", "with a scaler"])
def test_every_field_of_every_tap(scaled: bool, tmp_path: Path) -> None:
    for tap, axes in TAPS.items():
        for name in Moments.names():

            def theirs(rows: Moments, name: str = name) -> np.ndarray:
                return np.asarray(getattr(rows, name))

            theirs.__name__ = f"{tap}_{name}"
            metric(unit="1", axes=axes, needs=tap)(theirs)
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", 128.0, enabled=scaled)
    x = tokens()
    with sl.attach(model, optimizer, tmp_path, scaler=scaler if scaled else None) as lens:
        loss = model(x)
        scaler.scale(loss).backward()
        lens.grads_ready()
        scaler.step(optimizer)
        scaler.update()
        lens.step(loss)
    run = sl.load(tmp_path)
    for tap, axes in TAPS.items():
        for name in Moments.names():
            values = run[f"{tap}_{name}/{axes.replace(' ', '_')}"].values
            assert np.isfinite(values).all(), f"{tap}.{name}"
    gradient = torch.cat([p.grad.flatten() for p in model.blocks[1].parameters() if p.grad is not None]).double()
    assert run["grad_sum/layer"].values[0, 1] == pytest.approx(float(gradient.sum()), rel=1e-4, abs=1e-6)
    assert run["grad_sum_abs/layer"].values[0, 1] == pytest.approx(float(gradient.abs().sum()), rel=1e-5)
    assert run["grad_abs_max/layer"].values[0, 1] == pytest.approx(float(gradient.abs().max()), rel=1e-6)


def test_the_packages_own_metrics_cost_one_pass() -> None:
    rows = rows_for(selected(None))
    assert rows.pop("resid") is second_moments
    assert set(rows.values()) == {norm_row}


@pytest.mark.usefixtures("theirs")
def test_a_metric_without_a_docstring_has_a_page() -> None:
    @metric(unit="1", axes="layer", needs="grad")
    def grad_of_mine(rows: Moments) -> np.ndarray:
        return rows.sum_sq

    assert METRICS["grad_of_mine"].definition == "grad of mine (no docstring)"


@pytest.mark.usefixtures("theirs")
def test_a_metric_that_cannot_be_called_beforehand_gets_everything() -> None:
    @metric(unit="1", axes="layer", needs="grad")
    def picky(rows: Moments) -> np.ndarray:
        if len(rows.sum_sq) != 24:
            raise ValueError("made for 24 layers")
        return rows.sum_sq

    assert rows_for(selected(["grad_norm", "picky"]))["grad"] is moments
