"""``stabilitylens postmortem``."""

from __future__ import annotations

from typing import Annotated

import typer

from stabilitylens.cli._output import FailOption, Format, FormatOption, OutputOption, deliver, refuse_overwriting

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

    deliver(explain_runs(*paths, loss=loss), form, output, fail_on)
