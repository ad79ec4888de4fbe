"""Guards act only where they were asked to, before the update where they can, and leave nothing behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.errors import BadInput, TrainingStopped
from stabilitylens.hooks.guard import LensWarning
from stabilitylens.hooks.guards import ACTIONS, Alarm

BAD = 13


def poison(model: nn.Module, value: float = float("nan")) -> None:
    next(model.parameters()).grad.view(-1)[3] = value


def loop(
    logdir: Path, set_guards: Callable[[sl.Lens, dict[str, Any]], None], steps: int = 20, *, bad: Callable[[nn.Module], None] = poison,
    leave_out: bool = False, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **options: Any,
) -> tuple[nn.Module, torch.optim.Optimizer, sl.Run]:  # fmt: skip
    """A run whose gradients go wrong at step ``BAD``; ``leave_out`` never asks the optimizer for that step."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = make(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, logdir, **options) as lens:
        here: dict[str, Any] = {"model": model, "optimizer": optimizer}
        set_guards(lens, here)
        for step in range(1, steps + 1):
            here["x"] = tokens()
            here["step"] = step
            loss = model(here["x"])
            lens.micro_step(loss)
            loss.backward()
            if step == BAD:
                bad(model)
            if not (leave_out and step == BAD):
                optimizer.step()
            optimizer.zero_grad()
            lens.step()
    return model, optimizer, sl.load(logdir)


def flat(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [v for state in optimizer.state_dict()["state"].values() for v in state.values() if isinstance(v, torch.Tensor)]


def events(run: sl.Run, kind: str = "guard") -> list[str]:
    return [e.text for e in run.events if e.kind == kind]


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


@pytest.mark.parametrize("transient", [True, False])
def test_a_fault_that_does_not_repeat_is_told_from_one_that_does(transient: bool, tmp_path: Path) -> None:
    def guard(lens: sl.Lens, here: dict[str, Any]) -> None:
        def again() -> None:
            here["model"](here["x"]).backward()
            if not transient:
                poison(here["model"])

        lens.on("nonfinite", "rerun", again=again)
        lens.on("nonfinite", "skip")

    model, _, run = loop(tmp_path / "a", guard, every=1)
    other, _, _ = loop(tmp_path / "b", lambda *_: None, bad=lambda _: None) if transient else loop(tmp_path / "b", lambda *_: None, leave_out=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))  # dropout is in it
    said = events(run)
    assert len(said) == (1 if transient else 2)
    assert ("did not repeat" if transient else "repeats when run again, to the bit") in said[0]


def test_a_second_run_that_fails_leaves_the_first_as_it_was(tmp_path: Path) -> None:
    def guard(lens: sl.Lens, here: dict[str, Any]) -> None:
        def again() -> None:
            raise RuntimeError("the batch is gone")

        lens.on("nonfinite", "rerun", again=again)

    with pytest.warns(LensWarning, match="the batch is gone"):
        model, _, _ = loop(tmp_path / "a", guard, steps=BAD)
    assert not all(torch.isfinite(p).all() for p in model.parameters())  # the poisoned gradient was put back, and used


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


@pytest.mark.parametrize("own_folder", [True, False])
def test_a_checkpoint_holds_the_weights_of_before_the_update(own_folder: bool, tmp_path: Path) -> None:
    where = {"folder": str(tmp_path / "mine")} if own_folder else {}
    _, _, run = loop(tmp_path / "a", lambda lens, _: lens.on("nonfinite", "checkpoint", at_most=1, **where))
    folder = tmp_path / "mine" if own_folder else tmp_path / "a" / "checkpoints"
    saved = torch.load(folder / f"step_{BAD}.pt", weights_only=True)
    other, optimizer, _ = loop(tmp_path / "b", lambda *_: None, steps=BAD - 1)
    assert saved["step"] == BAD
    assert all(torch.equal(saved["model"][name], value) for name, value in other.state_dict().items())
    fresh = torch.optim.AdamW(Decoder().parameters(), 1.0)
    fresh.load_state_dict(saved["optimizers"][0])
    assert all(torch.equal(a, b) for a, b in zip(flat(fresh), flat(optimizer), strict=True))
    assert [p.name for p in folder.iterdir()] == [f"step_{BAD}.pt"] and "before the update" in events(run)[0]


def test_an_observed_model_with_a_guard_can_be_copied(tmp_path: Path) -> None:
    model = Decoder()
    with sl.attach(model, torch.optim.SGD(model.parameters(), 1e-3), tmp_path) as lens:
        lens.on("any", "rerun", again=lambda: None)
        assert copy.deepcopy(model) is not model


def _one_of_several(rank: int, folder: str) -> Any:
    """Gradients are this process's own, as where nothing averages them; that of one turns NaN."""
    torch.manual_seed(0)
    model = processes.model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with sl.attach(model, optimizer, Path(folder), every=4) as lens:
        lens.on("nonfinite", "checkpoint", at_most=1)
        lens.on("nonfinite", "skip")
        for step in range(1, 9):
            x = processes.batch(step, 0)
            loss = processes.loss_of(model(x), x)
            loss.backward()
            if rank == 2 and step in (1, 6):
                poison(model)
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
    return [p.detach().clone() for p in model.parameters()], [float(s["step"]) for s in optimizer.state.values()]


def test_processes_skip_together(tmp_path: Path) -> None:
    results = processes.on(4, _one_of_several, str(tmp_path))
    for parameters, steps in results:
        assert all(torch.equal(a, b) for a, b in zip(parameters, results[0][0], strict=True))
        assert set(steps) == {6.0}
    assert all(torch.isfinite(p).all() for p in results[0][0])
    assert [e.step for e in sl.load(tmp_path).events if e.kind == "guard"] == [1, 1, 6]
    dcp_to_torch_save(tmp_path / "checkpoints" / "step_1.pt", tmp_path / "whole.pt")
    torch.manual_seed(0)
    saved = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert saved["step"] == 1
    assert all(torch.equal(saved["model"][name], value) for name, value in processes.model().state_dict().items())
