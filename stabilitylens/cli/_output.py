"""What every command that reports has in common: its options, and where the report goes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

from stabilitylens.errors import BadInput
from stabilitylens.report import Report


class Format(StrEnum):
    """As ``--format`` takes it."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    LINE = "line"
    SARIF = "sarif"


class Level(StrEnum):
    """As ``--fail-on`` takes it."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


FormatOption = Annotated[Format, typer.Option("--format", help="How to write the report.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE instead of the terminal.")
]
FailOption = Annotated[
    Level | None, typer.Option("--fail-on", help="Exit with 1 if a finding or an incident is at least this severe.")
]


def refuse_overwriting(output: Path | None, inputs: Iterable[str]) -> None:
    """A report never takes the place of what it was made from.

    Raises:
        BadInput: the output is one of the inputs, or a file that lies in one and is there already.
    """
    if output is None or not output.exists():
        return
    from stabilitylens.readers import parted

    for given in (parted(Path(one))[0] for one in inputs):
        if given.exists() and (output.samefile(given) or (given.is_dir() and given.resolve() in output.resolve().parents)):
            raise BadInput(f"{output} is part of what was to be read, and would be overwritten; give -o another file")


def deliver(report: Report, form: Format, output: Path | None, fail_on: Level | None) -> None:
    """Write the report, then leave with 1 if it is as bad as ``fail_on``.

    Raises:
        BadInput: the file cannot be written, or a page would be poured into a terminal.
    """
    from stabilitylens.reports import REPORTERS

    pour(lambda stream: REPORTERS[form.value](report, stream), output, page=form is Format.HTML)
    if fail_on is not None and report.at_or_above(fail_on.value):
        raise typer.Exit(1)


def pour(write: Callable[[TextIO], None], output: Path | None, *, page: bool) -> None:
    """Let something write itself to a file, or to the terminal where ``output`` is None.

    Args:
        page: whether it is a page for a browser.

    Raises:
        BadInput: the file cannot be written, or a page would be poured into a terminal.
    """
    if output is None:
        if page and sys.stdout.isatty():
            raise BadInput("the HTML report is a page for a browser; give it a file, as in -o report.html")
        write(sys.stdout)
        return
    try:
        with output.open("w", encoding="utf-8") as stream:
            write(stream)
    except OSError as error:
        raise BadInput(f"cannot write {output}: {error.strerror}; give -o a file in a folder that exists") from error
    typer.echo(f"wrote {output}", err=True)
