"""Runs claims: in parallel over the cores, going on where it was stopped, with the time left."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stabilitylens.errors import BadInput
from stabilitylens.reproductions._claim import CLAIMS, Claim, Mode, Numbers
from stabilitylens.reproductions._folder import held, unwritable
from stabilitylens.reproductions._ledger import Entry, Ledger, merged
from stabilitylens.reproductions._origin import Origin
from stabilitylens.reproductions._place import device, placed
from stabilitylens.reproductions._pool import Found, measured
from stabilitylens.reproductions._ranks import Ranks
from stabilitylens.reproductions._scale import has_width, scaled
from stabilitylens.reproductions._store import Job, Result, write_whole
from stabilitylens.reproductions._verdict import outcomes, verdict


def chosen(names: Sequence[str], *, wide: bool = False) -> list[Claim]:
    """Claims by name; all of them for ``all``, and of these, if ``wide``, only those that can be widened.

    Raises:
        BadInput: no claim has one of the names.
    """
    wanted = [name.replace("_", "-") for name in names]
    unknown = [name for name in wanted if name != "all" and name not in CLAIMS]
    if unknown:
        near = get_close_matches(unknown[0], [*CLAIMS.names(), "all"], 1)
        perhaps = f"did you mean {near[0]}? " if near else ""
        raise BadInput(f"there is no claim called {unknown[0]!r}; {perhaps}`stabilitylens reproduce` lists all {len(CLAIMS)}")
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
    """Run claims and write ``out/<mode>/ledger.json``, where entries of other claims stay.

    What an earlier call measured with the same set-up and versions is taken from ``out``; recordings lie in
    ``out/<mode>/runs``. Under torchrun each rank measures its part, one at a time, and all of them return the whole
    ledger; the first writes it.

    Args:
        claims: see :func:`chosen`.
        mode: the quick plan of each, or the full one.
        out: a folder, made where it is missing.
        workers: processes; one a core where None. One for each rank, and for a GPU, whatever is given.
        console: where progress is shown; nowhere where None.
        scale: width that the widest models get, see :func:`~stabilitylens.reproductions._scale.scaled`; results lie in
            ``out/width_<scale>``, and models on a GPU where there is one.

    Raises:
        BadInput: the folder can't be written, or another run is in it; a worker process was killed; a claim can't be
            widened.
    """
    ranks = Ranks.here()
    if scale is not None:
        claims, out = [scaled(claim, mode, scale) for claim in claims], out / f"width_{scale}"
    where = ranks.device if scale is not None else device()
    alone = ranks.count > 1 or where.type != "cpu"
    jobs = [Job(c, cell, seed, mode, out) for c in claims for cell in c.plan(mode).cells for seed in range(c.plan(mode).seeds)]
    console = console or Console(quiet=True)
    with placed(where), held(out / mode, ranks):
        found = ranks.gathered(_found(jobs, ranks, 1 if alone else workers or os.cpu_count() or 1, console))
        entries = tuple(_entry(c, [(j, found[i]) for i, j in enumerate(jobs) if j.claim is c]) for c in claims)
        ledger = Ledger(mode, entries, scale)
        if ranks.rank == 0:
            _write(ledger, out / mode / "ledger.json")
    return ledger


def _write(ledger: Ledger, path: Path) -> None:
    try:
        ledger = ledger.over(Ledger.read(path))
    except (BadInput, OSError):
        pass  # none yet, or one that an older version wrote
    try:
        write_whole(path, json.dumps(ledger.to_dict(), indent=1) + "\n")
    except OSError as error:
        raise unwritable(path.parent, error) from error


def _found(jobs: Sequence[Job], ranks: Ranks, workers: int, console: Console) -> dict[int, Found]:
    """What is stored, and what this rank measures of the rest, longest first."""
    stored = {i: job.stored() for i, job in enumerate(jobs)}
    found: dict[int, Found] = {i: (result, "") for i, result in stored.items() if result is not None}
    todo = [i for i in ranks.mine(sorted(range(len(jobs)), key=lambda i: -jobs[i].weight)) if i not in found]
    said = f"{len(found)} of {len(jobs)} measurements are stored already"
    if not todo:
        console.print(f"{said}; nothing is left to measure" if ranks.count == 1 else said)
        return found
    if found:
        console.print(said)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars, closing(measured(jobs, todo, workers)) as results:
        bar = bars.add_task("measuring", total=len(todo))
        for i, result in results:
            found[i] = result
            bars.update(bar, advance=1, description=jobs[i].claim.name)
    return found


def _entry(claim: Claim, results: Sequence[tuple[Job, Found]]) -> Entry:
    reasons = [reason for _, (_, reason) in results if reason]
    if reasons:
        return Entry.of(claim, "not run", reason=reasons[0])
    results_of: dict[str, list[Result]] = {}
    for job, (found, _) in results:
        assert found is not None
        results_of.setdefault(job.cell, []).append(found)
    every = [result for each in results_of.values() for result in each]
    cells: dict[str, list[Numbers]] = {cell: [result.numbers for result in each] for cell, each in results_of.items()}
    seeds = [{name: numbers[seed] for name, numbers in cells.items()} for seed in range(len(next(iter(cells.values()))))]
    judged = outcomes(claim, [claim.conclude(table) for table in seeds])
    seconds, origin = sum(result.seconds for result in every), Origin.over(result.origin for result in every)
    return Entry.of(claim, verdict(judged), outcomes=judged, cells=merged(cells), seconds=seconds, origin=origin)
