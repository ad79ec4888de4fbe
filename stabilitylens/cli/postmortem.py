"""``stabilitylens postmortem``."""

from __future__ import annotations

from typing import Annotated

import typer

from stabilitylens.cli._output import FailOption, Format, FormatOption, OutputOption, deliver, refuse_overwriting
from stabilitylens.errors import BadInput
from stabilitylens.report import Subject
from stabilitylens.run import INITIAL

#: formats of runs that need no loss to be judged; names that a sentence lists
OURS, SHOWN = ("recording", "memory", INITIAL), 8

LossOption = Annotated[str | None, typer.Option("--loss", metavar="KEY", help="Which series is the loss, as the log names it.")]


def postmortem(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Logs of any tool, or folders; FILE#2 is the second run in a file, - standard input.")],
    loss: LossOption = None,
    form: FormatOption = Format.TEXT,
    output: OutputOption = None,
    fail_on: FailOption = None,
) -> None:
    """Explain what went wrong in a training run, or is about to.

    Several runs are laid side by side on the same scales.
    """
    refuse_overwriting(output, paths)
    from stabilitylens._postmortem import postmortem as explain_runs

    report = explain_runs(*paths, loss=loss)
    if not any(_tells(subject) for subject in report.subjects):
        names = list(dict.fromkeys(name for subject in report.subjects for name in subject.run or ()))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise BadInput(f"{' '.join(paths)} has no loss to explain; it has {', '.join(names[:SHOWN])}{more}, of which --loss takes one")
    deliver(report, form, output, fail_on)


def _tells(subject: Subject) -> bool:
    """Whether a run has a loss, is a recording of ours, or shows anything without one."""
    return subject.run is None or subject.run.format in OURS or "loss" in subject.run or bool(subject.incidents)
