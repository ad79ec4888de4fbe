"""Runs claims: in parallel over the cores, going on where it was stopped, with the time left."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stabilitylens.errors import BadInput
from stabilitylens.hooks import LensWarning
from stabilitylens.reproductions._claim import CLAIMS, Claim, Mode
from stabilitylens.reproductions._ledger import Entry, Ledger, here, merged
from stabilitylens.reproductions._place import device, placed
from stabilitylens.reproductions._ranks import Ranks
from stabilitylens.reproductions._scale import has_width, scaled
from stabilitylens.reproductions._store import Job
from stabilitylens.reproductions._verdict import outcomes, verdict

#: a measurement's result, or why there is none
Found = tuple[dict[str, Any] | None, str]


def chosen(names: Sequence[str], *, wide: bool = False) -> list[Claim]:
    """Claims by name; all of them for ``all``, and of these, if ``wide``, only those that can be widened.

    Raises:
        BadInput: no claim has one of the names.
    """
    wanted = [name.replace("_", "-") for name in names]
    unknown = [name for name in wanted if name != "all" and name not in CLAIMS]
    if unknown:
        raise BadInput(f"there is no claim called {unknown[0]!r}; `stabilitylens reproduce` lists all {len(CLAIMS)}")
    every = "all" in wanted
    return [claim for claim in CLAIMS if claim.name in wanted or (every and (has_width(claim) or not wide))]


def reproduce(
    claims: Sequence[Claim],
    mode: Mode,
    out: Path,
    *,
    workers: int | None = None,
    console: Console | None = None,
    scale: int | None = None,
) -> Ledger:
    """Run claims and write ``out/<mode>/ledger.json``.

    What an earlier call measured with the same set-up is taken from ``out``; recordings lie in ``out/<mode>/runs``. Under
    torchrun each rank measures its part, one at a time, and all of them return the whole ledger; the first writes it.

    Args:
        claims: see :func:`chosen`.
        mode: the quick plan of each, or the full one.
        out: a folder, made where it is missing.
        workers: processes; one a core where None. One for each rank, and for a GPU, whatever is given.
        console: where progress is shown; nowhere where None.
        scale: width that the widest models get, see :func:`~stabilitylens.reproductions._scale.scaled`; results lie in
            ``out/width_<scale>``, and models on a GPU where there is one.
    """
    ranks = Ranks.here()
    if scale is not None:
        claims, out = [scaled(claim, mode, scale) for claim in claims], out / f"width_{scale}"
    where = ranks.device if scale is not None else device()
    alone = ranks.count > 1 or where.type != "cpu"
    jobs = [Job(c, cell, seed, mode, out) for c in claims for cell in c.plan(mode).cells for seed in range(c.plan(mode).seeds)]
    with placed(where):
        found = ranks.gathered(_found(jobs, ranks, 1 if alone else workers or os.cpu_count() or 1, console or Console(quiet=True)))
    entries = tuple(_entry(c, [(j, found[i]) for i, j in enumerate(jobs) if j.claim is c]) for c in claims)
    ledger = here(mode, entries, scale, where)
    if ranks.rank == 0:
        path = out / mode / "ledger.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ledger.to_dict(), indent=1) + "\n", encoding="utf-8")
    return ledger


def _found(jobs: Sequence[Job], ranks: Ranks, workers: int, console: Console) -> dict[int, Found]:
    """What is stored, and what this rank measures of the rest, longest first."""
    stored = {i: job.stored() for i, job in enumerate(jobs)}
    found: dict[int, Found] = {i: (result, "") for i, result in stored.items() if result is not None}
    todo = [i for i in ranks.mine(sorted(range(len(jobs)), key=lambda i: -jobs[i].weight)) if i not in found]
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task(f"{len(todo)} measurements", total=sum(jobs[i].weight for i in todo))
        for i, result in _measured(jobs, todo, workers):
            found[i] = result
            bars.update(bar, advance=jobs[i].weight, description=f"{jobs[i].claim.name}")
    return found


def _measured(jobs: Sequence[Job], todo: Sequence[int], workers: int) -> Iterator[tuple[int, Found]]:
    """Results as they come. New processes are spawned, for a forked one would inherit the threads of torch."""
    if workers == 1 or len(todo) < 2:
        yield from ((i, _measure(jobs[i])) for i in todo)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_leave_with_parent) as pool:
        futures = {pool.submit(_measure, jobs[i]): i for i in todo}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _leave_with_parent() -> None:
    """End this process when the one that started it ends, however that was; a pool's workers would go on."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _measure(job: Job) -> Found:
    """One measurement on one thread; a claim that fails does not take the others with it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    shutil.rmtree(job.record, ignore_errors=True)  # what a run that was stopped left behind
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LensWarning)  # of losses that are not finite: some claims are about them
            return job.measure(), ""
    except BadInput as error:
        return None, str(error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return None, f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {error}"
    finally:
        torch.set_num_threads(threads)


def _entry(claim: Claim, results: Sequence[tuple[Job, Found]]) -> Entry:
    reasons = [reason for _, (_, reason) in results if reason]
    if reasons:
        return Entry.of(claim, "not run", reason=reasons[0])
    cells: dict[str, list[dict[str, float]]] = {}
    seconds = 0.0
    for job, (found, _) in results:
        assert found is not None
        cells.setdefault(job.cell, []).append(found["numbers"])
        seconds += found["seconds"]
    seeds = [{name: numbers[seed] for name, numbers in cells.items()} for seed in range(len(next(iter(cells.values()))))]
    judged = outcomes(claim, [claim.conclude(table) for table in seeds])
    return Entry.of(claim, verdict(judged), outcomes=judged, cells=merged(cells), seconds=seconds)
