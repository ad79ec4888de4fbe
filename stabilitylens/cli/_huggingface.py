"""From a config.json of Hugging Face to a model: no weights are loaded, nothing is downloaded, no code of it is run."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stabilitylens.errors import BadInput

#: bytes a parameter takes while a model is measured: two copies of weights, a gradient, a copy at the update, in float32
MEASURED_BYTES = 16


def from_config(path: Path, *, weights: bool) -> tuple[Any, str | None]:
    """The model that a config describes, and a note where it names code of its own.

    Args:
        path: the config.json, or the folder that holds it.
        weights: whether to make weights at random; without them the model is on the meta device.

    Raises:
        BadInput: there is no config, it names no architecture that transformers knows, or the model cannot be built.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _read(file, path)
    known = _known(config, file)
    own = _own_code(config)
    note = f"{file} names code of its own ({own}), which is never run: transformers' own model was audited" if own else None
    try:
        return _build(known, config, weights), note
    except (Exception, SystemExit) as error:
        if isinstance(error, BadInput):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise BadInput(f"transformers cannot build a model from {file}: {reason}") from error


def _read(file: Path, path: Path) -> dict[str, Any]:
    if not file.is_file():
        raise BadInput(f"{path} has no config.json; name the folder of a Hugging Face model, or package.module:factory")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadInput(f"{file} is no JSON, so no model can be built from it: {error}") from error
    if not isinstance(config, dict):
        raise BadInput(f"{file} holds no table of keys, so no model can be built from it; name a config.json of Hugging Face")
    return config


def _own_code(config: dict[str, Any]) -> str:
    """The files that ``auto_map`` names, empty where there are none."""
    auto_map = config.get("auto_map")
    values = auto_map.values() if isinstance(auto_map, dict) else ()
    return ", ".join(sorted({f"{str(v).partition('.')[0].rpartition('--')[2]}.py" for v in values}))


def _known(config: dict[str, Any], file: Path) -> Any:
    """The configuration class that transformers has for it, filled in."""
    try:
        import transformers
        from transformers import CONFIG_MAPPING, AutoConfig
    except ModuleNotFoundError as error:
        raise BadInput(f"auditing {file} needs transformers: pip install 'stabilitylens[torch,hf]'") from error
    # its advice on tokens has no bearing on an audit
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise BadInput(f"transformers cannot build a model from {file}: it names no architecture; give it a model_type, as llama")
    if kind not in CONFIG_MAPPING:
        near = get_close_matches(kind, list(CONFIG_MAPPING.keys()), n=3)
        version, own = transformers.__version__, _own_code(config)
        if own:
            raise BadInput(
                f"{file} is of type {kind}, which only code of its own describes ({own}); that is never run here: build the "
                "model in a factory and audit package.module:factory"
            )
        hint = f"did you mean {' or '.join(near)}?" if near else "update transformers, or audit package.module:factory"
        raise BadInput(f"{file} is of type {kind}, which transformers {version} does not know; {hint}")
    try:
        return AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise BadInput(f"transformers cannot build a model from {file}: {reason}") from error


def _build(known: Any, config: dict[str, Any], weights: bool) -> Any:
    import torch
    from transformers import AutoModel

    make = _architecture(config) or AutoModel.from_config
    with torch.device("meta"):
        model = make(known)
    if not weights:
        return model
    _check_memory(sum(p.numel() for p in model.parameters()))
    return make(known).float()


def _architecture(config: dict[str, Any]) -> Any:
    """How to build the class that the config names, if it is a model of transformers."""
    import transformers

    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    found = getattr(transformers, name, None) if name.isidentifier() else None
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found._from_config
    return None


def _check_memory(parameters: int) -> None:
    """Refuse to make weights that do not fit.

    Raises:
        BadInput: they do not.
    """
    import os

    needed = parameters * MEASURED_BYTES
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not on every system
        return
    if needed > free:
        raise BadInput(
            f"--init needs some {needed / 1e9:,.0f} GB for {parameters / 1e9:.3g} billion parameters, and {free / 1e9:,.0f} GB "
            "are free; measure a smaller config of the same shape, or leave --init out"
        )
