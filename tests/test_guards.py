"""Guards act only where they were asked to, before the update where they can, and leave nothing behind."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from guarded import BAD, events, flat, loop, poison
from torch import nn
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.errors import BadInput, TrainingStopped
from stabilitylens.hooks.guard import LensWarning
from stabilitylens.hooks.guards import ACTIONS, Alarm


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor, torch.optim.NAdam], ids=lambda m: m.__name__)
@pytest.mark.parametrize("every", [1, 10**6])
def test_a_skipped_step_never_happened(make: Any, every: int, tmp_path: Path) -> None:
    model, optimizer, run = loop(tmp_path / "a", lambda lens, _: lens.on("nonfinite", "skip"), make=make, every=every)
    other, its, _ = loop(tmp_path / "b", lambda *_: None, make=make, leave_out=True)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    assert len(flat(optimizer)) == len(flat(its)) and all(torch.equal(a, b) for a, b in zip(flat(optimizer), flat(its), strict=True))
    assert events(run) == [f"nonfinite at step {BAD} (loss {run['loss'].values[BAD - 1]:.4g} and gradient norm nan): skipped the update"]
    assert events(run, "step_skipped") == ["a guard kept the optimizer from its step"]


def test_the_loop_finds_its_gradients_as_it_left_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, tmp_path) as lens:
        lens.on("nonfinite", "skip")
        model(tokens()).backward()
        poison(model)
        before = [p.grad for p in model.parameters()]
        optimizer.step()
        assert all(p.grad is g for p, g in zip(model.parameters(), before, strict=True))
        lens.step(1.0)


def test_without_trouble_nothing_is_done_and_nothing_changes(tmp_path: Path) -> None:
    def guard(lens: sl.Lens, here: dict[str, Any]) -> None:
        for name in ("warn", "raise", "dense", "skip"):
            lens.on("any", name)
        lens.on("any", "rerun", again=lambda: None)

    model, _, run = loop(tmp_path / "a", guard, bad=lambda _: None)
    other, _, _ = loop(tmp_path / "b", lambda *_: None, bad=lambda _: None)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert events(run) == []


def test_raise_ends_the_loop_before_the_weights_are_hurt(tmp_path: Path) -> None:
    models = []

    def guard(lens: sl.Lens, here: dict[str, Any]) -> None:
        models.append(here["model"])
        lens.on("nonfinite", "raise")

    with pytest.raises(TrainingStopped, match=f"nonfinite at step {BAD} .* before the update"):
        loop(tmp_path, guard)
    assert all(torch.isfinite(p).all() for p in models[0].parameters())
    assert "stopped the training before the update" in events(sl.load(tmp_path))[0]


def told_late(logdir: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, logdir) as lens:
        lens.on("spike", "skip")
        lens.on("spike", "warn")
        for step in range(1, 20):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(100.0 if step == 15 else 2.0 + 0.01 * (step % 3))


def test_a_spike_that_only_the_last_call_tells_of(tmp_path: Path) -> None:
    with pytest.warns(LensWarning, match="too late to skip: call lens.micro_step") as caught:
        told_late(tmp_path)
    assert sum("spike at step 15 (loss 100" in str(w.message) for w in caught) == 1
    assert [e.step for e in sl.load(tmp_path).events if e.kind == "guard"] == [15]


def test_a_spike_of_the_gradient_is_seen_before_the_update(tmp_path: Path) -> None:
    def large(model: nn.Module) -> None:
        for p in model.parameters():
            p.grad *= 1e4

    model, _, run = loop(tmp_path / "a", lambda lens, _: lens.on("grad_spike", "skip"), bad=large)
    other, _, _ = loop(tmp_path / "b", lambda *_: None, leave_out=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert len(events(run)) == 1 and "grad_spike at step 13" in events(run)[0]


def test_going_dense(tmp_path: Path) -> None:
    _, _, run = loop(tmp_path, lambda lens, _: lens.on("nonfinite", "dense", at_most=1), steps=40, every=1000)
    assert [int(s) for s in run["param_norm/layer"].steps] == [1, *range(BAD + 1, BAD + 21)]


def test_a_function_is_told_everything_and_what_it_raises_ends_the_loop(tmp_path: Path) -> None:
    told: list[Alarm] = []

    def mine(alarm: Alarm) -> str:
        told.append(alarm)
        return "made a note"

    _, optimizer, run = loop(tmp_path / "a", lambda lens, _: lens.on("nonfinite", mine, at_most=1))
    assert told[0].kind == "nonfinite" and told[0].step == BAD and told[0].optimizer is optimizer and told[0].loss is not None
    assert events(run)[0].endswith(": called mine, made a note")

    def stop(alarm: Alarm) -> None:
        raise KeyError("enough")

    with pytest.raises(TrainingStopped, match="stop, set by lens.on.., raised KeyError") as caught:
        loop(tmp_path / "b", lambda lens, _: lens.on("nonfinite", stop))
    assert isinstance(caught.value.__cause__, KeyError)


def dead(logdir: Path) -> nn.Module:
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, logdir) as lens:
        lens.on("nonfinite", "skip", at_most=3)
        for _ in range(5):
            model(tokens()).backward()
            poison(model)
            optimizer.step()
            optimizer.zero_grad()
            lens.step(1.0)
    return model


def test_no_guard_carries_a_dead_run(tmp_path: Path) -> None:
    with pytest.warns(LensWarning, match="has acted 3 times and does nothing from here on"):
        model = dead(tmp_path)
    assert len(events(sl.load(tmp_path))) == 3
    assert not all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize(
    "given, sentence",
    [
        (("explosion", "warn"), "no such kind"), (("spike", "pray"), "no such action; it is one of .*skip"),
        (("spike", "rerun"), "needs again="), (("spike", "skip", {"at_most": 0}), "how often"), (("spike", "skip", {"lr": 1}), "knows no option lr"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_one_sentence(given: Any, sentence: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with sl.attach(model, torch.optim.SGD(model.parameters(), 1e-3), tmp_path) as lens:
        with pytest.raises(BadInput, match=sentence):
            lens.on(*given[:2], **(given[2] if len(given) > 2 else {}))


@pytest.mark.parametrize("member", ACTIONS, ids=lambda member: member.name)
def test_every_action_has_a_page(member: Any) -> None:
    assert "(no docstring)" not in member.page and member.page.splitlines()[0].endswith((".", ":")) or len(member.page) > 80


def test_an_observed_model_with_a_guard_can_be_copied(tmp_path: Path) -> None:
    model = Decoder()
    with sl.attach(model, torch.optim.SGD(model.parameters(), 1e-3), tmp_path) as lens:
        lens.on("any", "rerun", again=lambda: None)
        assert copy.deepcopy(model) is not model


def test_a_guard_that_closes_the_lens_ends_nothing_but_the_observation(tmp_path):
    def set_guards(lens, here):
        here["lens"] = lens
        lens.on("nonfinite", lambda alarm: alarm.lens.close())

    model, optimizer, run = loop(tmp_path, set_guards, steps=BAD + 4, blackbox=True)
    assert len(events(run)) == 1 and next(model.parameters()).isnan().any()
    assert not optimizer._optimizer_step_pre_hooks and not model._forward_pre_hooks


def test_what_is_no_action_and_a_lens_that_is_closed(tmp_path):
    model = torch.nn.Linear(2, 2)
    lens = sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path)
    with pytest.raises(BadInput, match="no such action"):
        lens.on("spike", ["skip"])
    lens.close()
    with pytest.warns(sl.hooks.LensWarning, match="sets no guard"):
        lens.on("spike", "skip")
