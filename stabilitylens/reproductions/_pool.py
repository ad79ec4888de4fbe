"""Measurements in processes of their own, which end with this one, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import traceback
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import torch

from stabilitylens.errors import BadInput
from stabilitylens.hooks import LensWarning
from stabilitylens.reproductions._claim import Numbers, Table
from stabilitylens.reproductions._folder import tried
from stabilitylens.reproductions._store import Job, Result

#: a measurement's result, or why there is none
Found = tuple[Result | None, str]
KILLED = (
    "a worker process ended without a result, as when it is killed for want of memory; what had been measured is stored, and the same "
    "command goes on from there, with fewer --workers where memory is short"
)


class _Spawning(SpawnContext):
    """Spawned, for a forked process would inherit the threads of torch; remembers its processes."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # a class there
        process = SpawnProcess(*args, **kwargs)
        self.started.append(process)
        return process

    def kill(self) -> None:
        """In the middle of whatever they do."""
        for process in self.started:
            if process.pid is not None:
                process.kill()


def measured(jobs: Sequence[Job], todo: Sequence[int], workers: int) -> Generator[tuple[int, Found], None, None]:
    """Results as they come; closed before its end, its processes are gone at once.

    Raises:
        Unwritable: results can't be stored.
        BadInput: a process was killed.
    """
    if workers == 1 or len(todo) < 2:
        yield from ((i, measure(jobs[i])) for i in todo)
        return
    context = _Spawning()
    pool = ProcessPoolExecutor(min(workers, len(todo)), context, initializer=_leave_with_parent)
    try:
        with _interrupts_later():
            futures = {pool.submit(measure, _sent(jobs[i])): i for i in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise BadInput(KILLED) from error
    finally:
        context.kill()
        pool.shutdown(cancel_futures=True)


def _sent(job: Job) -> Job:
    """What a worker needs of it; conclusions are drawn here, by a function that may be one that can't be sent."""
    return replace(job, claim=replace(job.claim, conclude=_elsewhere))


def _elsewhere(table: Table) -> Numbers:
    raise AssertionError("a worker measures, and concludes nothing")


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """What is started inside never sees Ctrl-C, which a terminal sends to all; here it arrives after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_with_parent() -> None:
    """End this process when the one that started it ends, however that was; a pool's workers would go on."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def measure(job: Job) -> Found:
    """One measurement on one thread; a claim that fails does not take the others with it, a full disk does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    shutil.rmtree(job.record, ignore_errors=True)  # what a run that was stopped left behind
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LensWarning)  # of losses that are not finite: some claims are about them
            return job.measure(), ""
    except Exception as error:
        tried(job.record.parent)
        tried(job.result.parent)
        return None, _reason(error)
    finally:
        torch.set_num_threads(threads)


def _reason(error: Exception) -> str:
    if isinstance(error, BadInput):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {error}"
