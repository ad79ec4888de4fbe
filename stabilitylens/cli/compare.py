"""``stabilitylens compare``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from stabilitylens.cli._output import OutputOption, pour, refuse_overwriting


class Form(StrEnum):
    """As ``--format`` takes it."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


def compare(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="A B", help="Two runs or more, of any tool, or folders; FILE#2 is the second run in a file.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How to write the comparison.")] = Form.TEXT,
    output: OutputOption = None,
) -> None:
    """Tell runs apart: the first step and series where two part, and what their headers say differs.

    Of more than two runs: which trait those that failed share, and the healthy run nearest to each.
    """
    refuse_overwriting(output, paths or [])
    from stabilitylens._compare import compare as compare_runs

    found = compare_runs(*paths or [])
    pour(lambda stream: found.write(stream, form.value), output, page=form is Form.HTML)
