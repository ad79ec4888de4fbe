"""What the counterfactuals of batch, learning rate and optimizer do to a training step, on a model small enough to know the answer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny_incidents import BAD, Loop
from torch import Tensor, nn
from training import one_thread

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.counterfactuals import COUNTERFACTUALS
from stabilitylens.suspects import SUSPECTS


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def test_each_has_a_page_a_known_suspect_and_a_file_of_its_name():
    folder = Path(__file__).parent.parent / "hooks" / "counterfactuals"
    assert {m.name for m in COUNTERFACTUALS} == {f.stem for f in folder.glob("[a-z]*.py")}
    for member in COUNTERFACTUALS:
        assert member.page.splitlines()[0].endswith((".", ":")) or member.page.splitlines()[0].count(" ") > 5
        assert member.suspect is None and member.weight == 0 or member.suspect in SUSPECTS and member.weight > 0


def test_the_batch_is_left_out_as_if_it_had_never_been(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path), "skip_batch")
    row = table["skip_batch"]
    assert row.verdict == "averts" and row.left_out == (BAD,) and BAD not in row.losses
    assert [row.losses[s] for s in range(table.snapshot_step, BAD)] == [table.baseline.losses[s] for s in range(table.snapshot_step, BAD)]
    assert set(table.baseline.losses) == set(row.losses) | {BAD}


def test_learning_rates_are_halved_from_the_snapshot_on(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path, rate=lambda step: 1e-3 * step), "halve_lr", after=3)
    steps = len(table.baseline.losses)
    base, halved = ([s["lr"] for s in part] for part in (loop.seen[:steps], loop.seen[steps:]))
    assert base == [1e-3 * s for s in range(table.snapshot_step, BAD + 1)] + 3 * [1e-3 * BAD]
    assert halved == [0.5 * lr for lr in base]
    assert table["halve_lr"].verdict == "does not avert" and f"step {BAD}" in table["halve_lr"].why


def test_a_learning_rate_that_moved_is_kept_where_it_was_and_one_that_did_not_is_nothing_to_try(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path / "a", rate=lambda step: 1e-3 if step < 12 else 3e-2), "steady_lr")
    assert {s["lr"] for s in loop.seen[len(table.baseline.losses) :]} == {1e-3}
    same = loop.table(loop.train(tmp_path / "b"), "steady_lr")["steady_lr"]
    assert same.verdict == "not applicable" and "10%" in same.why


def test_gradients_are_clipped_to_the_median_before(tmp_path):
    loop = Loop(optimizer=torch.optim.SGD, lr=1.0)
    folder = loop.train(tmp_path)
    seen: list[float] = []

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        before = [p.detach().clone() for p in model.parameters()]
        loss = loop.again(model, optimizer, batches)
        seen.append(math.sqrt(sum(float((p.detach() - b).square().sum()) for p, b in zip(model.parameters(), before, strict=True))))
        return loss

    table = sl.counterfactuals(folder, *loop.parts(), watched, names=["clip_harder"], after=2)
    steps = len(table.baseline.losses)
    usual = sorted(seen[: BAD - table.snapshot_step])
    middle = (usual[(len(usual) - 1) // 2] + usual[len(usual) // 2]) / 2
    assert max(seen[:steps]) > 1.01 * middle  # with SGD at lr 1 the update is the gradient
    assert max(seen[steps:]) == pytest.approx(middle, rel=1e-4)


def test_moments_begin_anew(tmp_path):
    loop = Loop()
    folder = loop.train(tmp_path)
    counts: list[float] = []

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        loss = loop.again(model, optimizer, batches)
        counts.append(float(optimizer.state[model.head.weight]["step"]))
        return loss

    table = sl.counterfactuals(folder, *loop.parts(), watched, names=["fresh_adam"], after=0)
    steps = len(table.baseline.losses)
    assert counts == [*range(table.snapshot_step, BAD + 1), *range(1, steps + 1)]
    plain = Loop(optimizer=torch.optim.SGD)
    assert plain.table(plain.train(tmp_path / "sgd"), "fresh_adam")["fresh_adam"].verdict == "not applicable"


@pytest.mark.parametrize(("given", "wanted"), [({"betas": (0.9, 0.999)}, 0.95), ({"betas": (0.9, 0.95)}, 0.9), ({"betas": (0.9, 0.9)}, None)])
def test_beta2_is_lowered_once(given, wanted, tmp_path):
    loop = Loop(**given)
    folder = loop.train(tmp_path)
    seen: set[float] = set()

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        seen.add(optimizer.param_groups[0]["betas"][1])
        return loop.again(model, optimizer, batches)

    row = sl.counterfactuals(folder, *loop.parts(), watched, names=["other_beta2"])["other_beta2"]
    assert seen == {given["betas"][1]} | ({wanted} if wanted else set())
    assert (row.verdict == "not applicable") is (wanted is None)


@pytest.mark.parametrize(("eps", "wanted"), [(1e-8, 1e-5), (1e-5, 1e-4)])
def test_eps_is_raised_once(eps, wanted, tmp_path):
    loop = Loop(eps=eps)
    folder = loop.train(tmp_path)
    seen: set[float] = set()

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        seen.add(optimizer.param_groups[0]["eps"])
        return loop.again(model, optimizer, batches)

    sl.counterfactuals(folder, *loop.parts(), watched, names=["larger_eps"])
    assert sorted(seen) == pytest.approx(sorted({eps, wanted}))


def test_an_unknown_name_is_said(tmp_path):
    loop = Loop()
    with pytest.raises(BadInput, match="halve_rl"):
        loop.table(loop.train(tmp_path), "halve_rl")
