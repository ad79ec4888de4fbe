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


def loop(rank, folder, options):
    """A training loop in which a rank can be made to do what it should not."""
    from processes import batch, loss_of, model

    every, steps = options.get("every", 1), options.get("steps", 4)
    os.environ["STABILITYLENS_PATIENCE"] = str(PATIENCE)
    wrapped = model(depth=2)
    if options.get("ddp", True):
        wrapped = torch.nn.parallel.DistributedDataParallel(wrapped)
    if options.get("fsdp"):
        wrapped = torch.distributed.fsdp.fully_shard(model(depth=2))
    optimizer = torch.optim.SGD(wrapped.parameters(), 1e-2)
    began, lens, losses = time.monotonic(), None, []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if rank in options.get("attached", range(99)):
            given = every[rank] if isinstance(every, dict) else every
            lens = sl.attach(wrapped, optimizer, folder, every=(lambda step: (rank, step) in given) if isinstance(given, set) else given)
        for step in range(steps):
            if step >= options.get("ends", {}).get(rank, steps):
                break
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
        if lens:
            lens.close()
    return time.monotonic() - began, [str(w.message) for w in said if "stabilitylens" in str(w.message)], losses


@pytest.fixture
def run(tmp_path):
    from processes import on

    def start(size=2, **options):
        results = on(size, loop, str(tmp_path), options, limit=60)
        recorded = sl.load(tmp_path) if (tmp_path / "stabilitylens").exists() else None
        return results, recorded

    return start


def kinds(recorded):
    return [event.kind for event in recorded.events]


def text(recorded, kind):
    return next(event.text for event in recorded.events if event.kind == kind)


def test_a_rank_raises_inside_the_lens(run):
    results, recorded = run(raises=(1, 1))
    assert max(t for t, *_ in results) < PATIENCE * 3
    assert list(recorded["resid_rms"].steps) == [1, 2, 3, 4]
    seen = np.isfinite(recorded["resid_rms"].values).all(1)
    assert list(seen) == [True, False, True, True], "without rank 1's data there is no value for all data"
    assert np.isfinite(recorded["grad_norm/layer"].values).all(), "the gradient is whole on the other rank"
    assert kinds(recorded) == ["rank_failure"] and "rank 1" in text(recorded, "rank_failure")


def test_a_rank_fails_to_see_an_attention_call(run):
    _, recorded = run(blind=(1, 0), steps=3)
    assert list(np.isfinite(recorded["attn_entropy"].values).all((1, 2))) == [True, False, False]
    assert np.isfinite(recorded["resid_rms"].values).all()
    assert "rank 1" in text(recorded, "rank_failure")


def test_one_rank_samples_and_the_other_does_not(run):
    results, recorded = run(every={0: 1, 1: 2})
    assert max(t for t, *_ in results) < PATIENCE
    assert "resid_rms" not in recorded
    assert all(any("different values of every=" in s for s in said) for _, said, _ in results)
    assert list(recorded["loss"].steps) == [1, 2, 3, 4]


def test_a_function_that_differs_between_ranks_is_agreed_on(run):
    results, recorded = run(every={0: {(0, 3)}, 1: {(1, 5)}}, steps=6)
    assert list(recorded["resid_rms"].steps) == [1, 3, 5]
    assert max(t for t, *_ in results) < PATIENCE


def test_a_rank_skips_a_step(run):
    results, recorded = run(forgets=((1, 1),), steps=7)
    assert max(t for t, *_ in results) < PATIENCE * 4 + 5, "the waiting has an end"
    assert list(recorded["resid_rms"].steps) == [1]
    assert "rank 1 did not come" in text(recorded, "ranks_apart")
    assert list(recorded["loss"].steps) == list(range(1, 8))
    assert any("so from here on only the record of each step's scalars goes on" in s for s in results[0][1])


def test_uneven_inputs(run):
    results, recorded = run(ends={1: 2}, ddp=False)
    assert max(t for t, *_ in results) < PATIENCE * 2, "who has ended is not waited for"
    assert list(recorded["resid_rms"].steps) == [1, 2]
    assert "ended" in text(recorded, "ranks_apart")
    assert list(recorded["loss"].steps) == [1, 2, 3, 4]


@pytest.mark.parametrize("only", [0, 1])
def test_only_one_rank_attaches(run, only):
    results, recorded = run(attached=[only])
    assert any("the only one with a lens" in s for s in results[only][1])
    assert recorded["loss"].values == pytest.approx(results[only][2], rel=1e-6)
    assert np.isfinite(recorded["grad_norm"].values).all(), "of a replicated model one rank knows every gradient"


def test_only_one_rank_of_a_sharded_model_attaches(run):
    _, recorded = run(attached=[0], ddp=False, fsdp=True)
    for name in ("grad_norm", "param_norm", "update_ratio"):
        assert name not in recorded
        assert "call attach() on every rank" in recorded.why_missing(name)
    assert np.isfinite(recorded["resid_rms"].values).all()


def test_the_rank_with_the_first_nan_is_named_though_the_step_was_not_sampled(run):
    _, recorded = run(nan=(1, 2), every=5, steps=5)
    assert text(recorded, "rank_nonfinite") == "rank 1 had the first loss that is not finite, at step 3"
    assert np.isnan(recorded["loss"].values[2])


def test_the_rank_that_deviates_is_named(run):
    _, recorded = run(size=3, flipped=(2, 0), steps=3)
    assert "the parameters of rank 2 are not those of ranks 0 and 1" in text(recorded, "rank_deviates")
    assert next(e.step for e in recorded.events if e.kind == "rank_deviates") == 2


def test_an_optimizer_that_steps_on_one_rank_only(run):
    _, recorded = run(no_update=(1, 1), steps=3)
    assert "rank 1" in text(recorded, "rank_skipped")


def test_losses_of_all_ranks_are_averaged_at_every_step_to_the_end(run):
    results, recorded = run(every=3, steps=5)
    own = np.mean([losses for *_, losses in results], axis=0)
    assert recorded["loss"].values == pytest.approx(own, rel=1e-6)
    assert len(recorded["grad_norm"].values) == 5


def counted(rank, folder, depth):
    from processes import batch, model, train
    from stabilitylens.hooks.collectives import Collectives

    calls = []
    original = dist.ProcessGroupGloo.allreduce
    before = Collectives.reduce

    def reduce(self, *buffers):
        group = self._group

        class Counting:
            def allreduce(self, *args):
                calls.append(args[0].numel())
                return original(group, *args)

        self._group = Counting()
        try:
            return before(self, *buffers)
        finally:
            self._group = group

    Collectives.reduce = reduce
    try:
        train(torch.nn.parallel.DistributedDataParallel(model(depth=depth)), lambda step: batch(step, rank), folder, steps=4)
    finally:
        Collectives.reduce = before
    return calls


def test_collectives_of_a_sample_do_not_grow_with_depth(tmp_path):
    from processes import on

    calls = {depth: on(2, counted, str(tmp_path / str(depth)), depth)[0] for depth in (2, 6)}
    samples, closing = 4, 1
    for some in calls.values():
        assert len(some) <= 3 * (samples + closing)
    assert len(calls[2]) == len(calls[6])
