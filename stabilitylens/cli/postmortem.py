"""``stabilitylens postmortem``."""

from __future__ import annotations

from typing import Annotated

import typer

from stabilitylens.cli._output import FailOption, Format, FormatOption, OutputOption, deliver


def postmortem(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Folders that attach() wrote to.")],
    form: FormatOption = Format.TEXT,
    output: OutputOption = None,
    fail_on: FailOption = None,
) -> None:
    """Explain what went wrong in a training run, or is about to.

    Several runs are laid side by side on the same scales.
    """
    from stabilitylens._postmortem import postmortem as explain_runs

    deliver(explain_runs(*paths), form, output, fail_on)
