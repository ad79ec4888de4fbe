"""The ``reproduce`` command."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stabilitylens.cli._output import OutputOption, pour
from stabilitylens.errors import BadInput

FOLDER = Path("reproductions")


class Form(StrEnum):
    """As ``--format`` takes it."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…|all]", help="Claims to run; all of them are listed where none is named.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick/--full", help="Small models and few steps, or the full plan.")] = True,
    out: Annotated[Path, typer.Option("--out", help="Folder for recordings and results; what is there is not run again.")] = FOLDER,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
    scale: Annotated[
        int | None,
        typer.Option(
            metavar="WIDTH",
            help="The same claim with its widest models this wide, on a GPU where there is one; expectations stay. Under "
            "`torchrun --nproc-per-node N -m stabilitylens reproduce …` measurements are dealt over the ranks.",
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How to write the ledger; markdown goes to a file, with pictures.")] = Form.TEXT,
    output: OutputOption = None,
) -> None:
    """Run published claims again on this machine: expected, measured, verdict.

    Stopped, it goes on where it was. Under torchrun the ranks share the work, and the first one writes. Exit code 1 where a claim could not be run.
    """
    try:
        from stabilitylens.reproductions import CLAIMS, chosen
        from stabilitylens.reproductions import reproduce as run
        from stabilitylens.reproductions._markdown import write_page
        from stabilitylens.reproductions._ranks import Ranks
        from stabilitylens.reproductions._text import write, write_list
    except ModuleNotFoundError as error:
        raise BadInput("claims are tested on models and need PyTorch: pip install 'stabilitylens[torch]'") from error
    if not names:
        pour(lambda stream: write_list(CLAIMS, stream), output, page=False)
        return
    if form is Form.MARKDOWN and output is None:
        raise BadInput("the markdown page has pictures beside it; give it a file, as in -o claims.md")
    from rich.console import Console

    console = Console(stderr=True, quiet=Ranks.here().rank > 0)
    ledger = run(chosen(names, wide=scale is not None), "quick" if quick else "full", out, workers=workers, console=console, scale=scale)
    if Ranks.here().rank > 0:
        return
    if form is Form.MARKDOWN and output is not None:
        write_page(ledger, output)
    else:
        pour(lambda stream: write(ledger, stream, as_json=form is Form.JSON), output, page=False)
    if any(entry.verdict == "not run" for entry in ledger.entries):
        raise typer.Exit(1)
