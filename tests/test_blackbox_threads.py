"""Dumps that other threads ask for, beside a loop that trains on."""

from __future__ import annotations

import os
import signal
import threading

import torch
from boxed import dumped
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.hooks.blackbox import dumping
from stabilitylens.hooks.blackbox.evidence import INCIDENTS, Evidence


def fresh():
    torch.manual_seed(0)
    model = Decoder(dropout=0.2).train()
    return model, torch.optim.AdamW(model.parameters(), 1e-2)


def step(model, optimizer, batches):
    loss = model(batches[0])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_whatever_other_threads_have_dumped_replays_to_the_bit(tmp_path):
    model, optimizer = fresh()
    done, waiting = threading.Event(), threading.Semaphore(0)
    with sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(snapshot_every=2)) as lens:

        def ask():
            while waiting.acquire() and not done.is_set():
                lens.dump()

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(40):
            if number % 8 == 2:
                waiting.release(3)
            lens.step(step(model, optimizer, [lens.batch(tokens())]))
        done.set()
        waiting.release(3)
        for thread in threads:
            thread.join()
        assert not lens.guard.failures
    names = dumped(tmp_path)
    assert len(names) >= 3 and not any(name.startswith(".") for name in names)
    for name in names:
        found = sl.replay(tmp_path / INCIDENTS / name, *fresh(), step, samples=False)
        assert found.exact, (name, found.difference)
    assert [e.kind for e in sl.load(tmp_path).events].count("incident_dumped") == len(names)


def test_a_batch_that_is_overwritten_while_another_thread_writes_it_is_left_out(tmp_path, monkeypatch):
    large = torch.zeros(1 << 17)
    model, optimizer = fresh()
    save = torch.save

    def slow(*args):
        monkeypatch.setattr(dumping.torch, "save", save)
        large.fill_(7)
        save(*args)

    with sl.attach(model, optimizer, tmp_path, blackbox=True) as lens:
        lens.batch({"x": tokens(), "noise": large})
        lens.step(step(model, optimizer, [tokens()]))
        monkeypatch.setattr(dumping.torch, "save", slow)
        evidence = Evidence(lens.dump())
    assert evidence.manifest.left_out["step 1: batch.noise"] == "it was overwritten in place after the step had begun"


def test_a_signal_that_dumps_while_an_incident_is_written(tmp_path, monkeypatch):
    model, optimizer = fresh()
    save, inner = torch.save, []

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGUSR1)
        save(*args)

    with sl.attach(model, optimizer, tmp_path, blackbox=True) as lens:
        before = signal.signal(signal.SIGUSR1, lambda *_: inner.append(lens.dump()))
        try:
            lens.step(step(model, optimizer, [lens.batch(tokens())]))
            monkeypatch.setattr(dumping.torch, "save", interrupted)
            path = lens.dump()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert Evidence(path).steps == [1] and set(inner) == {None} and dumped(tmp_path) == ["step_1"]
