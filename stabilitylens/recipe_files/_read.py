"""From a file to a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.recipe import Recipe
from stabilitylens.recipe_files._convert import means_nothing
from stabilitylens.recipe_files._dialect import DIALECTS, Dialect
from stabilitylens.recipe_files._parse import parse

#: keys that a note names; the others are counted
NAMED = 6
#: characters of a value that a note shows
SHOWN = 60
ADAM_FIELDS = ("beta1", "beta2", "eps")


def read_recipe(path: str | Path) -> Recipe:
    """The recipe that a file states: YAML, JSON or TOML of a known framework, or of our own fields.

    Which framework's it is, is told by its keys. What the framework does where a key is left out is filled in, and
    ``notes`` says so, as it names keys that were not used.

    Args:
        path: the file. It is read as data; nothing in it is executed or imported.

    Raises:
        stabilitylens.errors.BadInput: it cannot be read, or no key of it is known.
    """
    flat = parse(Path(path))
    spoken = max(DIALECTS, key=lambda d: d.score(flat))
    if not any(key in spoken.table or key in spoken.uses for key in flat):
        keys = ", ".join(sorted(flat)[:NAMED]) or "none"
        raise BadInput(
            f"the recipe {path} has no key that is known ({keys}); it may have {', '.join(DIALECTS['own'].table)}, or be a "
            f"file of {', '.join(d.title for d in DIALECTS if d.name != 'own')}"
        )
    return translate(spoken, flat)


def translate(spoken: Dialect, flat: Mapping[str, Any]) -> Recipe:
    """A flat file in the words of a recipe."""
    fields: dict[str, Any] = {}
    odd = []
    for key, (field, convert) in spoken.table.items():
        value = convert(flat[key]) if key in flat else None
        if value is not None:
            fields[field] = value
        elif key in flat and not means_nothing(flat[key]):
            odd.append(f"{key} {flat[key]!r}"[:SHOWN])
    derived = spoken.derive(flat, fields) if spoken.derive else {}
    said = {field for key, (field, _) in spoken.table.items() if key in flat} | set(derived)
    fields |= {field: value for field, value in derived.items() if value is not None}
    filled = {field: value for field, value in spoken.defaults.items() if field not in said}
    if not adam_like(fields.get("optimizer", filled.get("optimizer"))):
        filled = {field: value for field, value in filled.items() if field not in ADAM_FIELDS}
    return Recipe(**filled | fields, notes=(*_notes(spoken, flat, filled), *_odd(odd)))


def _odd(values: list[str]) -> list[str]:
    return [f"no value that can be used, so it is taken as not known: {', '.join(values[:NAMED])}"] if values else []


def adam_like(optimizer: str | None) -> bool:
    """Whether betas and ε mean what they mean for Adam; taken for granted where the optimizer is not known."""
    return optimizer is None or any(kind in optimizer.lower() for kind in ("adam", "lamb"))


def _notes(spoken: Dialect, flat: Mapping[str, Any], filled: Mapping[str, Any]) -> list[str]:
    known = set(spoken.table) | spoken.uses | spoken.marks
    unused = [key for key in flat if key not in known and not key.startswith(spoken.ignored)]
    notes = [f"read as a file of {spoken.title}"] if spoken.name != "own" else []
    if filled:
        notes.append(f"not in the file, so {spoken.title} default: " + ", ".join(f"{k} {_shown(v)}" for k, v in filled.items()))
    if unused:
        more = f" and {len(unused) - NAMED} more" if len(unused) > NAMED else ""
        notes.append(f"not used: {', '.join(unused[:NAMED])}{more}")
    return notes


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
