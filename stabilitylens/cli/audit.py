"""``stabilitylens audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stabilitylens.cli._output import FailOption, Format, FormatOption, OutputOption, deliver


def audit(
    model: Annotated[
        str, typer.Argument(help="package.module:factory, or a folder or config.json of Hugging Face.")
    ],
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How it will be trained: YAML, JSON or TOML of a framework, or a recorded run."),
    ] = None,
    init: Annotated[
        bool, typer.Option("--init", help="Also measure one forward and backward at initialisation.")
    ] = False,
    form: FormatOption = Format.TEXT,
    output: OutputOption = None,
    fail_on: FailOption = None,
) -> None:
    """Judge a model's architecture and recipe before it is trained.

    The factory is called without arguments and returns the model, or the model and its example inputs.
    Of a Hugging Face model only the config is read: no weights are loaded or downloaded, and no code of it is run.
    """
    from stabilitylens._audit import audit as judge_model
    from stabilitylens._audit import recipe_of
    from stabilitylens.cli._model import build

    how = recipe_of(recipe)
    built = build(model, weights=init)
    report = judge_model(built.model, built.inputs, how, name=model, init=init)
    if built.note is not None:
        typer.echo(f"stabilitylens: note: {built.note}", err=True)
    deliver(report, form, output, fail_on)
