"""A disk that is full, and a budget that is too small: old evidence stays, and what is wrong is said."""

from __future__ import annotations

import resource
import signal
import warnings
from contextlib import contextmanager

import pytest
import torch
from boxed import dumped
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.hooks.blackbox.evidence import INCIDENTS, Evidence


@contextmanager
def full(most):
    """No file may be larger: what a program sees of it is what it sees of a full disk."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


class Loop:
    def __init__(self, folder, **box):
        torch.manual_seed(0)
        self.model = Decoder()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.lens = sl.attach(self.model, self.optimizer, folder, blackbox=sl.BlackBox(snapshot_every=3, **box))

    def steps(self, count, factor=1.0):
        for _ in range(count):
            loss = self.model(tokens()) * factor
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.lens.step(loss)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_snapshot_that_a_full_disk_does_not_take_is_said_once_and_leaves_nothing(tmp_path):
    loop = Loop(tmp_path, snapshot="disk")
    loop.steps(3)
    with full(100_000), pytest.warns(sl.hooks.LensWarning) as said:
        loop.steps(10)
    assert len([w for w in said if "could not be written to" in str(w.message) and "\n" not in str(w.message)]) == 1
    assert not list(tmp_path.rglob("*.partial"))
    loop.steps(6)
    assert Evidence(loop.lens.dump()).snapshot().step > 12
    assert not loop.lens.guard.failures
    loop.lens.close()


def test_dumps_that_a_full_disk_does_not_take_cost_no_old_incident(tmp_path):
    loop = Loop(tmp_path, budget_bytes=800_000)
    loop.steps(5)
    for _ in range(2):
        assert loop.lens.dump() is not None
    with full(50_000):
        assert [loop.lens.dump() for _ in range(3)] == [None] * 3
    assert dumped(tmp_path) == ["step_5", "step_5.2"]
    assert loop.lens.dump().name == "step_5.3", "room was not made when there was one to make it for"
    assert dumped(tmp_path) == ["step_5.2", "step_5.3"]
    loop.lens.close()


def test_a_dump_that_failed_by_itself_is_tried_again_at_the_next_alarm(tmp_path):
    loop = Loop(tmp_path)
    loop.steps(40)
    with full(50_000):
        loop.steps(1, 1e4)
    assert dumped(tmp_path) == []
    loop.steps(12)
    loop.steps(1, 1e4)
    loop.steps(1)
    assert dumped(tmp_path) == ["step_54"]
    loop.lens.close()


@pytest.mark.parametrize("budget", [1000, 200_000])
def test_an_incident_beyond_the_whole_budget_is_not_written_and_costs_nothing(budget, tmp_path):
    loop = Loop(tmp_path)
    loop.steps(5)
    loop.lens.dump()
    loop.lens.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop = Loop(tmp_path, budget_bytes=budget)
    loop.lens.load_state_dict({"step_number": 6})
    loop.steps(5)
    with pytest.warns(sl.hooks.LensWarning, match=r"an incident of 0\.\d\d MB is not written.*budget_bytes=\d{6}"):
        assert loop.lens.dump() is None
    assert dumped(tmp_path) == ["step_5"] and not loop.lens.guard.failures
    loop.lens.close()


def test_what_is_larger_in_the_end_than_it_was_thought_to_be_is_not_written_either(tmp_path, monkeypatch):
    monkeypatch.setattr("stabilitylens.hooks.blackbox.dumping._STATES", 1)
    loop = Loop(tmp_path, budget_bytes=50_000)
    loop.steps(5)
    with pytest.warns(sl.hooks.LensWarning, match="is not written"):
        assert loop.lens.dump() is None
    assert list((tmp_path / INCIDENTS).iterdir()) == []
    loop.lens.close()


def test_a_dump_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    loop = Loop(tmp_path)
    loop.steps(2)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("stabilitylens.hooks.blackbox.dumping.torch.save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.lens.dump()
    assert list((tmp_path / INCIDENTS).iterdir()) == []
    monkeypatch.undo()
    assert loop.lens.dump().name == "step_2"
    loop.lens.close()
