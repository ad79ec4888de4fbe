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
    if path.exists():
        from stabilitylens.cli._huggingface import from_config

        model, note = from_config(path, weights=weights)
        return Built(model, None, note)
    if ":" not in spec:
        raise BadInput(f"{spec} is no file or folder; name one, or a factory as package.module:factory")
    made = _call(spec)
    return Built(*made) if isinstance(made, tuple) and len(made) == 2 else Built(made)


def _call(spec: str) -> Any:
    module, _, factory = spec.partition(":")
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
