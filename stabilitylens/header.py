"""Header: what a recording says of itself, so that it can be read without the code that wrote it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from stabilitylens.anatomy import Anatomy
from stabilitylens.recipe import Recipe

#: raised only when an older reader could misread a newer record; new keys do not raise it
SCHEMA = 1

Worse = Literal["high", "low"]


@dataclass(frozen=True)
class MetricMeta:
    """Name, unit, axes of each array it has (``""`` is the scalar), a one-line definition, the worrying end."""

    name: str
    unit: str
    axes: tuple[str, ...]
    definition: str
    worse: Worse = "high"


@dataclass(frozen=True)
class Coverage:
    """What was seen of what there is: ``(seen, total)`` pairs, and what was not observed and why.

    Attributes:
        tied: further names of parameters, each with the name under which it is counted.
    """

    parameters: tuple[int, int] = (0, 0)
    layers: tuple[int, int] = (0, 0)
    attention: tuple[int, int] = (0, 0)
    not_observed: tuple[tuple[str, str], ...] = ()
    tied: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if self == Coverage():
            return "not known: the record does not say what of the model was looked at"
        seen = [
            f"{a} of {b} {what}"
            for (a, b), what in (
                (self.parameters, "trainable parameters"), (self.layers, "blocks"), (self.attention, "attention calls"),
            )
        ]
        reasons = dict.fromkeys(why for _, why in self.not_observed)
        missing = "; ".join(f"{', '.join(what for what, why in self.not_observed if why == reason)} ({reason})" for reason in reasons)
        once = f"; tied and counted once: {', '.join(f'{other} is {name}' for other, name in self.tied)}" if self.tied else ""
        return ", ".join(seen) + once + (f"; not observed: {missing}" if missing else "")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Header:
    """Schema version, metrics, axis labels, anatomy, recipe, sampling, versions and coverage.

    Attributes:
        labels: names of the entries of each axis, e.g. ``{"layer": ("blocks.0", …)}``.
        sampling: ``{"every": 10}``.
        versions: of Python, torch, numpy and this package.
    """

    schema: int = SCHEMA
    created: float = 0.0
    metrics: dict[str, MetricMeta] = field(default_factory=dict)
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    anatomy: Anatomy | None = None
    recipe: Recipe | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)

    def to_json(self) -> str:
        """Compact JSON; a number that is not finite is null, as JSON has no other word for it."""
        return json.dumps(_plain(asdict(self)), separators=(",", ":"), allow_nan=False, default=str)

    @classmethod
    def from_json(cls, text: str) -> Header:
        """From JSON of this or an older schema; unknown keys of a newer one are left out.

        Raises:
            ValueError: not JSON, or not a header.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or "schema" not in data:
            raise ValueError("not a stabilitylens header")
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        metrics = {
            name: MetricMeta(m["name"], m["unit"], tuple(m["axes"]), m["definition"], m.get("worse", "high"))
            for name, m in known.get("metrics", {}).items()
        }
        c = known.get("coverage", {})
        coverage = Coverage(
            parameters=tuple(c.get("parameters", (0, 0))),
            layers=tuple(c.get("layers", (0, 0))),
            attention=tuple(c.get("attention", (0, 0))),
            not_observed=tuple((what, why) for what, why in c.get("not_observed", ())),
            tied=tuple((other, name) for other, name in c.get("tied", ())),
        )
        anatomy, recipe = known.get("anatomy"), known.get("recipe")
        return cls(**known | {
            "metrics": metrics,
            "coverage": coverage,
            "labels": {axis: tuple(names) for axis, names in known.get("labels", {}).items()},
            "anatomy": Anatomy.from_dict(anatomy) if anatomy else None,
            "recipe": Recipe.from_dict(recipe) if recipe else None,
        })
