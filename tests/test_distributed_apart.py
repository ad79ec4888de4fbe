"""Ranks that disagree: nobody hangs, nothing wrong is recorded, and the record says who and when."""

from __future__ import annotations

import os
import sys
import time
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist

import stabilitylens as sl

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not dist.is_gloo_available(), reason="needs gloo")

PATIENCE = 2.0
#: what goes wrong, by name; (rank, step) pairs count steps from 0
WRONG = {
    "raises": {"raises": (1, 1)},
    "blind": {"blind": (1, 0), "steps": 3},
    "cadences": {"every": {0: 1, 1: 2}},
    "functions": {"every": {0: {3}, 1: {5}}, "steps": 6},
    "forgets": {"forgets": ((1, 1),), "steps": 7},
    "uneven": {"ends": {1: 2}, "ddp": False},
    "joined": {"ends": {1: 2}, "join": True},
    "only_0": {"attached": [0]},
    "only_1": {"attached": [1]},
    "only_0_sharded": {"attached": [0], "ddp": False, "fsdp": True},
    "copies": {"ddp": False},
    "nan": {"nan": (1, 2), "every": 5, "steps": 5},
    "no_update": {"no_update": (1, 1), "steps": 3},
    "sparse": {"every": 3, "steps": 5},
}


def loop(rank, folder, options):
    """A training loop in which a rank can be made to do what it should not."""
    from processes import batch, loss_of, model

    every, steps = options.get("every", 1), options.get("steps", 4)
    os.environ["STABILITYLENS_PATIENCE"] = str(PATIENCE)
    wrapped = model(depth=2)
    if options.get("ddp", True):
        wrapped = torch.nn.parallel.DistributedDataParallel(wrapped)
    if options.get("fsdp"):
        wrapped = torch.distributed.fsdp.fully_shard(wrapped)
    optimizer = torch.optim.SGD(wrapped.parameters(), 1e-2)
    began, lens, losses = time.monotonic(), None, []
    if rank in options.get("attached", range(99)):
        given = every[rank] if isinstance(every, dict) else every
        lens = sl.attach(wrapped, optimizer, folder, every=given.__contains__ if isinstance(given, set) else given)

    def train():
        for step in range(options.get("ends", {}).get(rank, steps)):
            x = batch(step, rank)
            loss = loss_of(wrapped(x), x)
            if (rank, step) == options.get("nan"):
                loss = loss * float("nan")
            loss.backward()
            if lens:
                lens.grads_ready()
            if (rank, step) != options.get("no_update"):
                optimizer.step()
            optimizer.zero_grad()
            if (rank, step) == options.get("flipped"):
                with torch.no_grad():
                    next(wrapped.parameters())[0, 0] += 1
            if lens and (rank, step) == options.get("raises"):
                lens._slots.read = lambda: 1 / 0
            if lens and (rank, step) == options.get("blind"):
                lens._taps.attention_call = lambda *_: lens.guard.failed("an attention call", ValueError("no"))
            if lens and (rank, step) not in options.get("forgets", ()):
                lens.step(loss)
            if lens:
                vars(lens._slots).pop("read", None)
            losses.append(loss.item())

    if options.get("join"):
        with wrapped.join():
            train()
    else:
        train()
    if lens:
        lens.close()
    return time.monotonic() - began, losses


def every_loop(rank, folder, wrong):
    """One after the other, since processes take long to start."""
    from stabilitylens.hooks import distributed

    out = {}
    for number, (name, options) in enumerate(wrong.items()):
        distributed._ATTACHED = 10 * number  # as if each were in a process of its own
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            seconds, losses = loop(rank, f"{folder}/{name}", options)
        out[name] = seconds, losses, [str(w.message) for w in said if "stabilitylens" in str(w.message)]
        dist.barrier()
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    from processes import on

    folder = tmp_path_factory.mktemp("apart")
    return folder, on(2, every_loop, str(folder), WRONG, limit=300)


@pytest.fixture
def run(runs):
    """What a loop left behind: the record, seconds, losses by rank and step, what was said by rank."""

    def of(name):
        folder, results = runs
        seconds, losses, said = zip(*(one[name] for one in results), strict=True)
        return sl.load(folder / name), max(seconds), losses, said

    return of


def kinds(recorded):
    return [event.kind for event in recorded.events]


def text(recorded, kind):
    return next(event.text for event in recorded.events if event.kind == kind)


def test_a_rank_raises_inside_the_lens(run):
    recorded, seconds, *_ = run("raises")
    assert seconds < PATIENCE * 3
    assert list(recorded["resid_rms"].steps) == [1, 2, 3, 4]
    seen = np.isfinite(recorded["resid_rms"].values).all(1)
    assert list(seen) == [True, False, True, True], "without rank 1's data there is no value for all data"
    assert np.isfinite(recorded["grad_norm/layer"].values).all(), "the gradient is whole on the other rank"
    assert kinds(recorded) == ["rank_failure"] and "rank 1" in text(recorded, "rank_failure")


def test_a_rank_fails_to_see_an_attention_call(run):
    recorded, *_ = run("blind")
    assert list(np.isfinite(recorded["attn_entropy"].values).all((1, 2))) == [True, False, False]
    assert np.isfinite(recorded["resid_rms"].values).all()
    assert "rank 1" in text(recorded, "rank_failure")


def test_one_rank_samples_and_the_other_does_not(run):
    recorded, seconds, _, said = run("cadences")
    assert seconds < PATIENCE
    assert "resid_rms" not in recorded
    assert all(any("different values of every=" in s for s in some) for some in said)
    assert list(recorded["loss"].steps) == [1, 2, 3, 4]


def test_functions_that_differ_between_ranks_are_agreed_on(run):
    recorded, seconds, *_ = run("functions")
    assert list(recorded["resid_rms"].steps) == [1, 3, 5]
    assert seconds < PATIENCE


def test_a_rank_skips_a_step(run):
    recorded, seconds, _, said = run("forgets")
    assert seconds < PATIENCE * 4 + 10, "the waiting has an end"
    assert list(recorded["resid_rms"].steps) == [1]
    assert "rank 1 did not come" in text(recorded, "ranks_apart")
    assert list(recorded["loss"].steps) == list(range(1, 8))
    assert any("so from here on only the record of each step's scalars goes on" in s for s in said[0])


def test_who_has_ended_is_not_waited_for(run):
    recorded, seconds, *_ = run("uneven")
    assert seconds < PATIENCE * 2
    assert list(recorded["resid_rms"].steps) == [1, 2]
    assert "ended" in text(recorded, "ranks_apart")
    assert list(recorded["loss"].steps) == [1, 2, 3, 4]


def test_uneven_inputs_that_ddp_joins(run):
    recorded, seconds, losses, _ = run("joined")
    assert seconds < PATIENCE * 4 + 10
    assert [len(some) for some in losses] == [4, 2], "training goes on to its end"
    assert list(recorded["resid_rms"].steps) == [1, 2]
    assert list(recorded["loss"].steps) == [1, 2, 3, 4]


@pytest.mark.parametrize("only", [0, 1])
def test_only_one_rank_attaches(run, only):
    recorded, _, losses, said = run(f"only_{only}")
    assert any("the only one with a lens" in s for s in said[only])
    assert recorded["loss"].values == pytest.approx(losses[only], rel=1e-6)
    assert np.isfinite(recorded["grad_norm"].values).all(), "of a replicated model one rank knows every gradient"


def test_only_one_rank_of_a_sharded_model_attaches(run):
    recorded, *_ = run("only_0_sharded")
    for name in ("grad_norm", "param_norm", "update_ratio"):
        assert name not in recorded
        assert "call attach() on every rank" in recorded.why_missing(name)
    assert np.isfinite(recorded["resid_rms"].values).all()


def test_copies_that_nothing_keeps_equal_have_no_common_norm(run):
    recorded, *_ = run("copies")
    assert recorded["resid_rms"].values.shape == (4, 2), "they are copies, not stages of a pipeline"
    assert np.isnan(recorded["grad_norm/layer"].values).all()
    assert "hold different values" in str(recorded.header.coverage)


def test_the_rank_with_the_first_nan_is_named_though_its_step_was_not_sampled(run):
    recorded, *_ = run("nan")
    assert text(recorded, "rank_nonfinite") == "rank 1 had the first loss that is not finite, at step 3"
    assert np.isnan(recorded["loss"].values[2])


def test_an_optimizer_that_steps_on_one_rank_only(run):
    assert "rank 1" in text(run("no_update")[0], "rank_skipped")


def test_losses_of_all_ranks_are_averaged_at_every_step_to_the_end(run):
    recorded, _, losses, _ = run("sparse")
    assert recorded["loss"].values == pytest.approx(np.mean(losses, axis=0), rel=1e-6)
    assert len(recorded["grad_norm"].values) == 5


def of_three(rank, folder):
    """One rank's copy is changed; and what a sample costs at two depths."""
    from processes import batch, model, train

    from stabilitylens.hooks.collectives import Collectives

    loop(rank, f"{folder}/flipped", {"flipped": (2, 0), "steps": 3})
    counts, reduce = {}, Collectives.reduce

    def counting(self, *buffers):
        group = self._group

        class Counter:
            def allreduce(self, *args):
                counts[depth] = counts.get(depth, 0) + 1
                return group.allreduce(*args)

        self._group = Counter()
        try:
            return reduce(self, *buffers)
        finally:
            self._group = group

    Collectives.reduce = counting
    for depth in (2, 6):
        wrapped = torch.nn.parallel.DistributedDataParallel(model(depth=depth))
        train(wrapped, lambda step: batch(step, rank), f"{folder}/{depth}", steps=4)
    Collectives.reduce = reduce
    return counts


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    from processes import on

    folder = tmp_path_factory.mktemp("three")
    return folder, on(3, of_three, str(folder))


def test_the_rank_that_deviates_is_named(three):
    recorded = sl.load(three[0] / "flipped")
    event = next(e for e in recorded.events if e.kind == "rank_deviates")
    assert "the parameters of rank 2 are not those of ranks 0 and 1" in event.text
    assert event.step == 2


def test_collectives_of_a_sample_do_not_grow_with_depth(three):
    samples, closing = 4, 1
    for counts in three[1]:
        assert counts[2] == counts[6] <= 3 * (samples + closing)
