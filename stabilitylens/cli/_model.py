"""From what ``audit`` is given on the command line to a model."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from stabilitylens.errors import BadInput


def build(spec: str) -> tuple[Any, Any]:
    """The model, and its example inputs or None.

    Args:
        spec: ``package.module:factory``, or a folder or config.json of Hugging Face.

    Raises:
        BadInput: there is no such thing, or it does not give a model.
    """
    path = Path(spec)
    if path.exists():
        return _from_config(path), None
    if ":" not in spec:
        raise BadInput(f"{spec} is no file or folder; name one, or a factory as package.module:factory")
    made = _call(spec)
    return made if isinstance(made, tuple) and len(made) == 2 else (made, None)


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe from a JSON file.

    Raises:
        BadInput: it cannot be read, or is not a JSON object.
    """
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read the recipe {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"the recipe {path} is not JSON: {error}") from error
    if not isinstance(recipe, dict):
        raise BadInput(f'the recipe {path} must be a JSON object, as {{"optimizer": "AdamW", "lr": 3e-4}}')
    return recipe


def _call(spec: str) -> Any:
    module, _, factory = spec.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"cannot import {spec}: {error}; name a factory as package.module:factory") from error
    if not callable(make):
        raise BadInput(f"{spec} is of type {type(make).__name__}; name a function that returns the model")
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise BadInput(f"{spec}() failed with {type(error).__name__}: {error}; it is called without arguments") from error


def _from_config(path: Path) -> Any:
    """A Hugging Face model without weights, on the meta device."""
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file():
        raise BadInput(f"{path} has no config.json; name the folder of a Hugging Face model, or package.module:factory")
    try:
        import torch
        from transformers import AutoConfig, AutoModel
    except ModuleNotFoundError as error:
        raise BadInput(f"auditing {path} needs transformers: pip install 'stabilitylens[torch,hf]'") from error
    try:
        known = AutoConfig.from_pretrained(config, local_files_only=True)
        with torch.device("meta"):
            return AutoModel.from_config(known)  # type: ignore[no-untyped-call]
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise BadInput(f"transformers cannot build a model from {config}: {reason}") from error
