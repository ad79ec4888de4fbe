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
        Path | None, typer.Option(metavar="FILE", help="JSON with what is known of the recipe, as {\"lr\": 3e-4}.")
    ] = None,
    form: FormatOption = Format.TEXT,
    output: OutputOption = None,
    fail_on: FailOption = None,
) -> None:
    """Judge a model's architecture and recipe before it is trained.

    The factory is called without arguments and returns the model, or the model and its example inputs.
    Of a Hugging Face model only the config is read: no weights are loaded or downloaded.
    """
    from stabilitylens._audit import audit as judge_model
    from stabilitylens.cli._model import build, read_recipe

    known = read_recipe(recipe) if recipe is not None else None
    module, inputs = build(model)
    deliver(judge_model(module, inputs, known, name=model), form, output, fail_on)
