"""The ``demo`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stabilitylens.errors import BadInput

FOLDER = Path("demo")


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the recordings and the report.")] = FOLDER,
    steps: Annotated[int, typer.Option(min=20, help="Training steps of each run.")] = 300,
) -> None:
    """Train a small Transformer twice, with and without QK-Norm, and explain what the loss does not show."""
    try:
        from stabilitylens.demo import demonstrate
        from stabilitylens.demo.training import Plan
    except ModuleNotFoundError as error:
        raise BadInput("the demo trains a model and needs PyTorch: pip install 'stabilitylens[torch]'") from error
    out.mkdir(parents=True, exist_ok=True)
    demonstrate(out, Plan(steps=steps))
