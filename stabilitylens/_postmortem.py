"""What went wrong in some runs, or is about to: incidents and every rule's verdict."""

from __future__ import annotations

from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.incidents import detect
from stabilitylens.report import Report, Subject
from stabilitylens.rules import Evidence, judge
from stabilitylens.run import Run, load


def postmortem(*runs: str | Path | Run) -> Report:
    """Explain one run, or several side by side.

    Args:
        runs: folders that ``attach`` wrote to, or runs that are loaded already.

    Raises:
        stabilitylens.errors.BadInput: no run was named, or one cannot be read; the message is one
            sentence that says what was found and what to do.
    """
    if not runs:
        raise BadInput("postmortem was given no run; name the folder of one, as in postmortem('runs/gpt')")
    return Report("postmortem", tuple(_subject(run) for run in runs))


def _subject(run: str | Path | Run) -> Subject:
    if not isinstance(run, Run):
        run = load(run)
    anatomy, recipe = run.header.anatomy, run.header.recipe
    evidence = Evidence(run.path, anatomy=anatomy, recipe=recipe, run=run)
    return Subject(run.path, tuple(judge(evidence)), anatomy, recipe, run, tuple(detect(run)))
