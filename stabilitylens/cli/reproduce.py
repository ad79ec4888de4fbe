"""The ``reproduce`` command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from stabilitylens.cli._output import OutputOption, pour
from stabilitylens.errors import BadInput

if TYPE_CHECKING:
    from stabilitylens.reproductions._claim import Mode

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
    out: Annotated[Path, typer.Option("--out", help="Folder for recordings and results; what is there is not run again, unless the code or torch or numpy changed.")] = FOLDER,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
    scale: Annotated[
        int | None,
        typer.Option(
            metavar="WIDTH",
            min=1,
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
    with _going_on(out):
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
    if output is not None:
        _refuse_unwritable(output)
    from rich.console import Console

    console = Console(stderr=True, quiet=Ranks.here().rank > 0)
    mode: Mode = "quick" if quick else "full"
    with _going_on(out):
        ledger = run(chosen(names, wide=scale is not None), mode, out, workers=workers, console=console, scale=scale)
    if Ranks.here().rank > 0:
        return
    if form is Form.MARKDOWN and output is not None:
        write_page(ledger, output, _command(names, mode, scale, output))
    else:
        pour(lambda stream: write(ledger, stream, as_json=form is Form.JSON), output, page=False)
    if any(entry.verdict == "not run" for entry in ledger.entries):
        raise typer.Exit(1)


@contextmanager
def _going_on(out: Path) -> Iterator[None]:
    """Ctrl-C is a sentence, said by the first rank."""
    try:
        yield
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            typer.echo(f"stabilitylens: interrupted; what was measured is stored in {out}, run the same command to go on", err=True)
        raise typer.Exit(130) from None


def _refuse_unwritable(output: Path) -> None:
    """Before anything is measured, for the ledger is written at the end."""
    folder = output.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent  # the others are made for the page
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(f"cannot write {output}: {error.strerror}; give -o a file in a folder that can be written") from error
    if output.is_dir():
        raise BadInput(f"cannot write {output}, which is a folder; give -o a file")


def _command(names: Sequence[str], mode: Mode, scale: int | None, output: Path) -> str:
    """What made the page, without the folders of this machine."""
    path = os.path.relpath(output)
    shown = output.name if path.startswith(os.pardir) else path
    return " ".join(["stabilitylens reproduce", *names, f"--{mode}", *([f"--scale {scale}"] if scale else []), f"--format markdown -o {shown}"])
