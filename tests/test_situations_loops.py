"""What training loops do to a monitor, each kind once: when gradients are read, what they are, what a step costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stabilitylens as sl
from tests.loops import observed


class Block(nn.Module):
    """x + W2 relu(W1 x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.up(x).relu())
        return out


class Stack(nn.Module):
    """A list of blocks, and a part that may be unused."""

    def __init__(self, depth: int = 3, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.unused = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def with_gradients(model: nn.Module, change: Callable[[nn.Module], Any], logdir: Path) -> sl.Run:
    """One step of plain SGD whose gradients are changed between backward and ``grads_ready``."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, logdir, every=1) as lens:
        loss = model(torch.randn(2, 8)).square().mean()
        loss.backward()
        change(model)
        lens.grads_ready()
        optimizer.step()
        lens.step(loss)
    return sl.load(logdir)


def fill(parameter: nn.Parameter, value: float) -> None:
    assert parameter.grad is not None
    parameter.grad.fill_(value)


def test_a_gradient_that_is_zero_is_zero_and_one_that_is_none_is_not_observed(tmp_path: Path) -> None:
    model = Stack()
    run = with_gradients(model, lambda m: [fill(p, 0.0) for p in m.blocks[1].parameters()], tmp_path)
    norms = run["grad_norm/layer"].values[0]
    assert norms[1] == 0
    assert norms[0] > 0
    group = run.header.labels["group"].index("unused")
    assert np.isnan(run["grad_norm/group"].values[0, group])
    assert {"unused.weight", "unused.bias"} <= {name for name, why in run.header.coverage.not_observed if "no gradient" in why}


def test_gradients_that_were_thrown_away_before_the_end_of_the_step_are_read_before_that(tmp_path: Path) -> None:
    def loop(attach: Callable[..., Any]) -> tuple[nn.Module, list[Tensor]]:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        loss = model(torch.randn(2, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        lens.step(loss)
        return model, [loss.detach()]

    assert (observed(loop, tmp_path)["grad_norm_clipped"].values > 0).all()


def test_one_infinite_gradient_is_named_before_clipping_spoils_the_others(tmp_path: Path) -> None:
    def loop(attach: Callable[..., Any]) -> tuple[nn.Module, list[Tensor]]:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        loss = model(torch.randn(2, 8)).square().mean()
        loss.backward()
        model.blocks[1].down.weight.grad[0, 0] = math.inf
        lens.grads_ready()
        nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        optimizer.step()
        lens.step(loss)
        return model, [loss.detach()]

    run = observed(loop, tmp_path)
    before, after = run["grad_norm/layer"].values[0], run["grad_norm_clipped/layer"].values[0]
    assert np.isfinite(before).tolist() == [True, False, True]
    assert np.isfinite(after).tolist() == [False, False, False]


def test_clipping_is_recorded_before_and_after_with_its_factor(tmp_path: Path) -> None:
    def loop(attach: Callable[..., Any]) -> tuple[nn.Module, list[Tensor]]:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        loss = 1000 * model(torch.randn(2, 8)).square().mean()
        loss.backward()
        lens.grads_ready()
        before = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lens.step(loss)
        return model, [loss.detach(), before.detach()]

    run = observed(loop, tmp_path)
    before = float(run["grad_norm"].values[0])
    assert before > 10
    assert float(run["grad_norm_clipped"].values[0]) == pytest.approx(1, rel=1e-4)
    assert float(run["clip_coef"].values[0]) == pytest.approx(1 / before, rel=1e-4)


def test_a_norm_of_bf16_gradients_is_not_rounded_to_bf16(tmp_path: Path) -> None:
    model = Stack(10).bfloat16()

    def change(m: nn.Module) -> None:
        torch.manual_seed(1)
        for p in m.parameters():
            p.grad = (100 * torch.randn(p.shape)).bfloat16()

    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        model(torch.randn(2, 8, dtype=torch.bfloat16)).float().square().mean().backward()
        change(model)
        expected = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        total = nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
        lens.grads_ready()
        optimizer.step()
        lens.step(0.0)
    norm = float(sl.load(tmp_path)["grad_norm"].values[0])
    assert norm == pytest.approx(expected, rel=1e-6)
    assert abs(total / expected - 1) > 1e-4  # torch's own is rounded, so that the test can fail


def test_a_spike_of_one_layer_shows_in_its_own_norm_where_the_total_hardly_moves(tmp_path: Path) -> None:
    model = Stack(24)

    def change(m: nn.Module) -> None:
        torch.manual_seed(1)
        for p in m.parameters():
            p.grad = torch.randn(p.shape)
        m.blocks[7].up.weight.grad.view(-1)[:16] *= 8

    run = with_gradients(model, change, tmp_path)
    norms = run["grad_norm/layer"].values[0]
    assert norms.argmax() == 7
    assert norms[7] > 1.5 * np.median(norms)
    expected = np.sqrt((norms**2).sum() + sum(p.grad.square().sum().item() for p in model.unused.parameters()))
    assert float(run["grad_norm"].values[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("every", [50])
def test_between_sampled_steps_no_hook_of_ours_reads_a_tensor(every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    lens = sl.attach(model, optimizer, tmp_path, every=every)
    taps: list[str] = []
    for name in ("enter", "leave", "stream", "gradient", "attention_call"):
        real = getattr(lens._taps, name)
        monkeypatch.setattr(lens._taps, name, lambda *a, real=real, name=name: (taps.append(name), real(*a))[1])
    for step in range(1, 5):
        before = len(taps)
        model(torch.randn(2, 8)).square().mean().backward()
        lens.grads_ready()
        optimizer.step()
        lens.step(0.0)
        assert (len(taps) > before) == (step == 1)
    lens.close()
    assert taps


def test_the_hooks_of_a_model_are_what_they_were_after_closing_even_after_an_error_inside(tmp_path: Path) -> None:
    model = Stack()

    def hooks() -> list[int]:
        return [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]

    before, attributes = hooks(), [set(vars(m)) for m in model.modules()]
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def interrupted() -> None:
        with sl.attach(model, optimizer, tmp_path, every=1):
            model(torch.randn(2, 8)).square().mean().backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert hooks() == before
    assert [set(vars(m)) for m in model.modules()] == attributes
    assert not nn.modules.module._global_forward_hooks


def test_integer_and_empty_parameters_beside_trainable_ones(tmp_path: Path) -> None:
    model = Stack()
    model.quantised = nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    model.empty = nn.Parameter(torch.zeros(0))
    run = with_gradients(model, lambda _m: None, tmp_path)
    seen, total = run.header.coverage.parameters
    assert (seen, total) == (12, 15)
    assert np.isfinite(run["param_norm"].values).all()
