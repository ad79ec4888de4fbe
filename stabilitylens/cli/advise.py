"""``stabilitylens advise``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stabilitylens.cli._output import OutputOption, pour
from stabilitylens.errors import BadInput

if TYPE_CHECKING:
    from stabilitylens.advice import Advice, Proposal


class Form(StrEnum):
    """As ``--format`` takes it."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


def advise(
    params: Annotated[float | None, typer.Option(help="Parameters of the model, as 70e9.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks of the model.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens, patches or frames in a sample.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples that a device sees in one forward.")] = None,
    devices: Annotated[int | None, typer.Option(help="Devices that see different data; 1 if not given.")] = None,
    grad_accumulation: Annotated[int | None, typer.Option(help="Forwards in a step, on each device; 1 if not given.")] = None,
    task: Annotated[str | None, typer.Option(help="lm, vision, detection, speech or research; lm if not given.")] = None,
    precision: Annotated[str | None, typer.Option(help="What the forward is planned in: bf16, fp16, fp32 or fp8.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or muon; adamw if not given.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    width: Annotated[int | None, typer.Option(help="Channels of the residual stream.")] = None,
    head_width: Annotated[int | None, typer.Option(help="Channels of a head.")] = None,
    multimodal: Annotated[bool | None, typer.Option("--multimodal", help="Modalities share one stream.")] = None,
    variable_length: Annotated[
        bool | None, typer.Option("--variable-length/--fixed-length", help="Whether samples differ in length; by task if not given.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--from", metavar="MODEL", help="Start from an audit of this model instead, as `audit` takes it.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(metavar="FILE", help="With --from: how it is trained, as `audit` takes it.")] = None,
    form: Annotated[Form, typer.Option("--format", help="How to write the advice.")] = Form.TEXT,
    output: OutputOption = None,
) -> None:
    """Recommend norms and a recipe for a planned model, or the smallest change to a model.

    From numbers: a norm, its placement, QK-Norm, precision, clipping, warm-up and more, each with why, how strong the
    evidence is, what contradicts it and what it costs. With --from: an audit, and what clears its findings.
    """
    plan = {
        "params": params, "layers": layers, "seq_len": seq_len, "batch_size": batch_size, "n_devices": devices,
        "grad_accumulation": grad_accumulation, "task": task, "precision": precision, "optimizer": optimizer, "lr": lr,
        "width": width, "head_width": head_width, "multimodal": multimodal, "variable_length": variable_length,
    }
    given = {name: value for name, value in plan.items() if value is not None}
    found = _advice(given, recipe) if model is None else _proposal(model, recipe, given)
    pour(lambda stream: found.write(stream, form.value), output, page=form is Form.HTML)


def _advice(plan: dict[str, Any], recipe: Path | None) -> Advice:
    from stabilitylens._advise import advise as advise_on

    if recipe is not None:
        raise BadInput("--recipe goes with --from MODEL; without a model give numbers, as --params 7e9 --layers 32")
    if not {"params", "layers"} <= set(plan):
        raise BadInput("advise needs --params and --layers, as --params 7e9 --layers 32, or --from MODEL")
    advice: Advice = advise_on(**plan)
    return advice


def _proposal(model: str, recipe: Path | None, plan: dict[str, Any]) -> Proposal:
    from stabilitylens._advise import advise as advise_on
    from stabilitylens._audit import recipe_of
    from stabilitylens.cli._model import build

    if plan:
        names = ", ".join(f"--{name.replace('n_', '').replace('_', '-')}" for name in plan)
        raise BadInput(f"--from MODEL says of itself what {names} would; give one or the other")
    how = recipe_of(recipe)
    built = build(model)
    if built.note is not None:
        typer.echo(f"stabilitylens: note: {built.note}", err=True)
    proposal: Proposal = advise_on(built.model, example_inputs=built.inputs, recipe=how, name=model)
    return proposal
