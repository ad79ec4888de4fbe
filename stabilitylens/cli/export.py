"""``stabilitylens export``."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stabilitylens.cli._output import refuse_overwriting
from stabilitylens.errors import BadInput


class To(StrEnum):
    """As ``--to`` takes it."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"
    WANDB = "wandb"
    MLFLOW = "mlflow"


def export(
    path: Annotated[str, typer.Argument(metavar="RUN", help="A recording, or a log of any tool; FILE#2 is the second run in it, - standard input.")],
    to: Annotated[To, typer.Option("--to", help="The format to write.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE instead of standard output.")
    ] = None,
) -> None:
    """Write all series of a run as a table that other tools read, or hand its curves to a tracker.

    Parquet and CSV have a row a value, with the step, the series and a column for each axis; JSON lines an object a step.
    W&B and MLflow get a new run with every curve, by their own clients, where the environment says.
    """
    from stabilitylens.run import load
    from stabilitylens.writers._exporter import EXPORTERS, write_to
    from stabilitylens.writers._tracker import TRACKERS

    if to.value in TRACKERS:
        if output is not None:
            raise BadInput(f"a run is sent to {to.value} and written to no file; leave out -o")
        typer.echo(f"sent to {TRACKERS[to.value](load(path))}", err=True)
        return
    if output is None and to is To.PARQUET and sys.stdout.isatty():
        raise BadInput("Parquet is no text for a terminal; give it a file, as in -o run.parquet")
    if output is not None and output.is_dir():
        raise BadInput(f"cannot write {output}: it is a folder; give -o a file")
    refuse_overwriting(output, [path])
    run = load(path)
    if output is None:
        EXPORTERS[to.value](run, sys.stdout.buffer)
        return
    try:
        write_to(run, to.value, output)
    except OSError as error:
        raise BadInput(f"cannot write {output}: {error.strerror}; give -o a file in a folder that exists") from error
    typer.echo(f"wrote {output}", err=True)
