"""What went wrong in some runs, or is about to: incidents and every rule's verdict."""

from __future__ import annotations

from pathlib import Path

from stabilitylens.dumps import dumps_of
from stabilitylens.errors import BadInput
from stabilitylens.explanation import contexts
from stabilitylens.incidents import detect
from stabilitylens.readers import read_all
from stabilitylens.report import Report, Subject
from stabilitylens.rules import Evidence, judge
from stabilitylens.run import Run
from stabilitylens.suspects import suspects_of


def postmortem(*runs: str | Path | Run, loss: str | None = None) -> Report:
    """Explain one run, or several side by side.

    Args:
        runs: folders that ``attach`` wrote to, logs of other tools, or runs that are loaded already.
        loss: which series is the loss, as the log names it; by default it is chosen by name and behaviour.

    Raises:
        stabilitylens.errors.BadInput: no run was named, or one cannot be read; the message is one
            sentence that says what was found and what to do.
    """
    if not runs:
        raise BadInput("postmortem was given no run; name the folder of one, as in postmortem('runs/gpt')")
    found = [one for run in runs for one in ([run] if isinstance(run, Run) else read_all(Path(run), loss))]
    subjects = tuple(_subject(run) for run in found)
    suspects = [suspect for subject in subjects for suspect in suspects_of(subject)]
    return Report("postmortem", subjects, sorted(suspects, key=lambda suspect: -suspect["score"]))


def _subject(run: Run) -> Subject:
    anatomy, recipe = run.header.anatomy, run.header.recipe
    evidence = Evidence(run.path, anatomy=anatomy, recipe=recipe, run=run)
    incidents = tuple(detect(run))
    dumps = dumps_of(run)
    around = tuple(contexts(run, incidents, dumps))
    return Subject(run.path, tuple(judge(evidence)), anatomy, recipe, run, incidents, contexts=around, dumps=dumps)
