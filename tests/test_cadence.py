"""Which steps are sampled, and which metrics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import descend

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.cadence import DENSE, REST, SPARSE, Auto
from stabilitylens.hooks.guard import LensWarning
from stabilitylens.incidents._online import LEAST, WINDOW, OnlineDetector


class Block(nn.Module):
    """A pre-norm feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.up(self.norm(x)).relu())
        return out


def train(logdir: Path, steps: int, losses: Callable[[int], float] | None = None, **options: Any) -> sl.Run:
    """A recording of a tiny model; ``losses`` overrides what the lens is told."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, logdir, **options) as lens:
        for step in range(1, steps + 1):
            loss = model(torch.randn(4, 5, 8)).square().mean()
            descend(loss, optimizer, lens)
            lens.step(loss if losses is None else losses(step))
    return sl.load(logdir)


def sampled(run: sl.Run) -> list[int]:
    return [int(step) for step in run["resid_rms/layer"].steps]


def test_a_function_chooses_the_steps(tmp_path: Path) -> None:
    run = train(tmp_path, 20, every=lambda step: step in (5, 6, 19))
    assert sampled(run) == [1, 5, 6, 19]


def test_a_function_that_raises_is_said_once_and_training_goes_on(tmp_path: Path) -> None:
    with pytest.warns(LensWarning, match="the function given as every= failed") as caught:
        run = train(tmp_path, 6, every=lambda step: step / 0)
    assert len(caught) == 1
    assert sampled(run) == [1]


def test_auto_is_sparse_on_a_calm_run(tmp_path: Path) -> None:
    run = train(tmp_path, 2 * SPARSE + 10, lambda step: 5 * step**-0.1 * (1 + 0.01 * math.sin(7 * step)), every="auto")
    assert sampled(run) == [1, SPARSE, 2 * SPARSE]


def test_auto_goes_dense_for_a_while_after_a_spike(tmp_path: Path) -> None:
    run = train(tmp_path, 60, lambda step: 9.0 if step == 30 else 4 + 0.02 * math.sin(7 * step), every="auto")
    assert sampled(run) == [1, *range(31, 31 + DENSE), *([50] if 31 + DENSE <= 50 else [])]


def test_auto_rests_after_a_dense_stretch() -> None:
    auto = Auto()
    chosen = []
    for step in range(1, 400):
        chosen.append(auto.due(step))
        auto.note({"loss": math.nan})
    stretches = "".join("x" if c and (step % SPARSE) else "." for step, c in enumerate(chosen, 1)).replace(".x", ". x").split()
    assert sum(chosen) <= 400 * DENSE / (DENSE + REST) + 400 / SPARSE + DENSE
    assert len(stretches) > 2


def test_all_processes_go_dense_together() -> None:
    votes: list[bool] = []

    def agree(flag: bool) -> bool:
        votes.append(flag)
        return len(votes) == 10  # another process has smelt something

    auto = Auto(agree)
    assert [auto.due(step) for step in range(1, 13)] == [False] * 9 + [True] * 3
    assert votes == [False] * 12


@pytest.mark.parametrize("every", [0, -3, 2.5, True, None, "often", [1]])
def test_what_is_no_cadence_is_refused(tmp_path: Path, every: Any) -> None:
    with pytest.raises(BadInput, match="is no sampling interval; pass a whole number of steps"):
        train(tmp_path, 1, every=every)


def test_nothing_smells_in_the_noise_of_a_decaying_loss() -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(2, 2000, generator=generator).tolist()
    detector = OnlineDetector()
    smells = [detector.update(6 * (t + 1) ** -0.1 * (1 + 0.02 * a), math.exp(0.2 * b)) for t, (a, b) in enumerate(zip(*noise, strict=True))]
    assert sum(map(bool, smells)) <= 4


@pytest.mark.parametrize(
    ("loss", "norm", "skipped", "kinds"),
    [
        (9.0, 1.0, False, {"spike"}),
        (4.0, 50.0, False, {"grad_spike"}),
        (4.0, 50.0, True, set()),
        (math.nan, 1.0, False, {"nonfinite"}),
        (4.0, math.inf, False, {"nonfinite"}),
        (4.0, math.inf, True, set()),
        (None, None, False, set()),
        (1.0, 0.01, False, set()),
    ],
)
def test_a_step_smells_of_what_it_is(loss: float | None, norm: float | None, skipped: bool, kinds: set[str]) -> None:
    detector = OnlineDetector()
    for t in range(LEAST):
        assert not detector.update(4 + 0.01 * (t % 2), 1 + 0.01 * (t % 3))
    assert detector.update(loss, norm, skipped) == kinds


def test_a_new_level_ends_to_smell() -> None:
    detector = OnlineDetector()
    for _ in range(WINDOW):
        detector.update(2.0, None)
    assert [bool(detector.update(3.0, None)) for _ in range(2 * WINDOW)][-LEAST:] == [False] * LEAST


def test_only_the_chosen_metrics_are_recorded_and_the_rest_is_said(tmp_path: Path) -> None:
    run = train(tmp_path, 4, every=2, metrics=["grad_norm", "update_ratio"])
    arrays = {name.partition("/")[0] for name, series in run.items() if series.axes}
    assert arrays == {"grad_norm", "update_ratio"}
    assert {"loss", "lr", "grad_norm"} <= set(run)
    left_out = dict(run.header.coverage.not_observed)
    assert left_out["resid_rms"] == left_out["adam_rms"] == "attach() was not asked for it by metrics="
    assert "grad_norm" not in left_out


def test_gradients_alone_put_no_hook_on_the_forward(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    with sl.attach(model, optimizer, tmp_path, every=1, metrics=["grad_norm"]) as lens:
        model[0].up.register_forward_hook(lambda *_: seen.append(len(nn.modules.module._global_forward_hooks)))
        model(torch.randn(2, 3, 8)).sum().backward()
        lens.step(0.0)
    assert seen == [0]


def test_an_unknown_metric_is_refused_with_its_neighbours(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'grad_nrm', which is no metric; did you mean grad_norm"):
        train(tmp_path, 1, metrics=["grad_nrm"])
    assert not (tmp_path / "stabilitylens").exists()


def test_the_header_says_how_it_was_sampled(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(tmp_path / "auto", 2, every="auto").header.sampling == {"every": "auto"}
    assert train(tmp_path / "ten", 2, every=10).header.sampling == {"every": 10}
