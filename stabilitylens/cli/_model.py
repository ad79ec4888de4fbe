"""From what ``audit`` is given on the command line to a model."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stabilitylens.errors import BadInput


@dataclass(frozen=True)
class Built:
    """A model, its example inputs or None, and what a person should know of how it was built."""

    model: Any
    inputs: Any = None
    note: str | None = None


def build(spec: str, *, weights: bool = False) -> Built:
    """Make the model that a name on the command line stands for.

    Args:
        spec: ``package.module:factory``, or a folder or config.json of Hugging Face.
        weights: whether a Hugging Face model gets weights at random, as for training; else it has none.

    Raises:
        BadInput: there is no such thing, or it does not give a model.
    """
    path = Path(spec)
    if path.suffix == ".py" and path.is_file():
        raise BadInput(f"{spec} is Python source; name a factory in it, as {_dotted(path)}:factory")
    if path.exists():
        from stabilitylens.cli._huggingface import from_config

        model, note = from_config(path, weights=weights)
        return Built(model, None, note)
    module, colon, factory = spec.rpartition(":")
    if not colon:
        wanted = "the folder or config.json of a Hugging Face model (none is downloaded), or a factory as package.module:factory"
        raise BadInput(f"{spec} does not exist; name {wanted}")
    if module.endswith(".py"):
        raise BadInput(f"{spec} names a file; name its module instead: {_dotted(Path(module))}:{factory or 'factory'}")
    if not module or not factory:
        raise BadInput(f"{spec} names no {'factory' if module else 'module'}; name both, as package.module:factory")
    made = _call(spec, module, factory)
    return Built(*made) if isinstance(made, tuple) and len(made) == 2 else Built(made)


def _dotted(path: Path) -> str:
    """The module of a file, as it is imported from the working folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts) if all(part.isidentifier() for part in parts) else path.stem


def _call(spec: str, module: str, factory: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), factory)
    except (Exception, SystemExit) as error:
        raise BadInput(f"cannot import {spec}: {_said(error)}; name a factory as package.module:factory") from error
    if not callable(make):
        raise BadInput(f"{spec} is of type {type(make).__name__}; name a function that returns the model")
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise BadInput(f"{spec}() failed with {_said(error)}; it is called without arguments") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
