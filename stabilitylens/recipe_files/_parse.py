"""From a file to flat keys: JSON, TOML or YAML, told by content where the name does not tell."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from stabilitylens.errors import BadInput

#: a recipe is a page or two; a larger file is something else
MOST_BYTES = 4_000_000
#: nesting past which keys are not followed: the deepest known dialect has four levels
DEPTH = 8
#: keys past which a file is no recipe; aliases in YAML can make many out of few
MOST_KEYS = 20_000

Syntax = tuple[str, Callable[[str], Any], type[Exception]]
_SYNTAXES: dict[str, Syntax] = {
    ".json": ("JSON", json.loads, ValueError),
    ".toml": ("TOML", tomllib.loads, ValueError),
    ".yaml": ("YAML", yaml.safe_load, yaml.YAMLError),
}
_SYNTAXES[".yml"] = _SYNTAXES[".yaml"]


def parse(path: Path) -> dict[str, Any]:
    """The keys of a file by their dotted path.

    Raises:
        BadInput: it cannot be read, is too large or binary, is not well-formed, or is no table of keys.
    """
    text = _text(path)
    document = _document(path, text)
    if not isinstance(document, dict):
        raise BadInput(f"the recipe {path} holds no table of keys; write e.g. {{\"optimizer\": \"AdamW\", \"lr\": 3e-4}}")
    flat: dict[str, Any] = {}
    for key, value in _flatten(document, (), DEPTH):
        flat[key] = value
        if len(flat) > MOST_KEYS:
            raise BadInput(f"the recipe {path} has more than {MOST_KEYS:,} keys; give the file that training starts from")
    return flat


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput(f"the recipe {path} has {path.stat().st_size:,} bytes; give the file that training starts from")
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read the recipe {path}: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"the recipe {path} is no text, and pickles are never loaded; give a YAML, JSON or TOML file") from error


def _document(path: Path, text: str) -> Any:
    """By the suffix where it is a known one, else by trying each: YAML last, for nearly all text is YAML."""
    suffix = path.suffix.lower()
    syntaxes = [_SYNTAXES[suffix]] if suffix in _SYNTAXES else [_SYNTAXES[s] for s in (".json", ".toml", ".yaml")]
    problem = ""
    for name, load, failure in syntaxes:
        try:
            return load(text)
        except (failure, RecursionError) as error:
            problem = f"not {name}: {' '.join(str(error).split())}"
    raise BadInput(f"the recipe {path} is {problem}")


def _flatten(document: dict[Any, Any], above: tuple[str, ...], depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        here = (*above, str(key))
        if isinstance(value, dict) and value and depth:
            yield from _flatten(value, here, depth - 1)
        else:
            yield ".".join(here), value
