"""What guards do to save a training: run a step again, save it, go back; several processes together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from guarded import BAD, events, flat, loop, poison
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.guard import LensWarning


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


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_rolling_back_goes_on_from_the_older_snapshot(place: str, late: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    states: dict[int, dict[str, torch.Tensor]] = {}
    with sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(snapshot_every=3, snapshot=place)) as lens:  # type: ignore[arg-type]
        lens.on("spike" if late else "nonfinite", "roll_back", at_most=1)
        for step in range(1, 21):
            states[step] = copy.deepcopy(model.state_dict())
            loss = model(tokens())
            loss.backward()
            if step == BAD and not late:
                poison(model)
            optimizer.step()
            optimizer.zero_grad()
            lens.step(1e4 if late and step == BAD else loss)
            if step == BAD:
                after = copy.deepcopy(model.state_dict())
    assert all(torch.equal(after[name], states[10][name]) for name in after)  # snapshots before steps 10 and 13
    assert not all(torch.equal(model.state_dict()[name], after[name]) for name in after)
    run = sl.load(tmp_path)
    assert events(run)[-1].endswith("went back to the state before step 10")
    assert [e.step for e in run.events if e.kind == "incident_dumped"] == [BAD]


def test_rolling_back_needs_snapshots(tmp_path: Path) -> None:
    model = Decoder()
    with sl.attach(model, torch.optim.SGD(model.parameters(), 1e-3), tmp_path, blackbox=True) as lens:
        with pytest.raises(BadInput, match="needs snapshots"):
            lens.on("nonfinite", "roll_back")


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
