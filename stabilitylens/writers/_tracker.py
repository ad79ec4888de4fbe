"""What a tracker is: an experiment tracker's own client library, which a run is handed to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stabilitylens.registry import Registry
from stabilitylens.run import Run, Series
from stabilitylens.tags import Tags, tag_of


@runtime_checkable
class Send(Protocol):
    """Hands a run to a tracker and says where it went."""

    def __call__(self, run: Run, /) -> str:
        """Send all of it."""


TRACKERS: Registry[Send] = Registry("stabilitylens.writers")


def tracker(name: str) -> Callable[[Send], Send]:
    """Register a tracker under its name, as ``export --to`` takes it."""
    return TRACKERS.named(name)


def curves(run: Run) -> dict[str, Series]:
    """Every curve by its TensorBoard tag: the scalars, and what the recording derived of its arrays."""
    tags = Tags(*run.summaries)
    scalars = {tags.claim(tag_of(name)): series for name, series in run.series.items() if not series.axes}
    return {tag: series for tag, series in {**scalars, **run.summaries}.items() if not series.axes}


def rows(run: Run) -> Iterator[tuple[int, dict[str, float]]]:
    """Each step with the curves that have it, in order; what was not observed is left out."""
    all_curves = curves(run)
    at = dict.fromkeys(all_curves, 0)
    steps = [series.steps for series in all_curves.values()]
    for step in np.unique(np.concatenate(steps)).tolist() if steps else ():
        row = {}
        for tag, series in all_curves.items():
            i = at[tag]
            if i < len(series) and series.steps[i] == step:
                at[tag] += 1
                row[tag] = float(series.values[i])
        yield step, row


def facts(run: Run) -> dict[str, Any]:
    """Recipe, anatomy and sampling as flat plain data."""
    header = run.header
    recipe = header.recipe.to_dict() if header.recipe else {}
    anatomy = header.anatomy.to_dict() if header.anatomy else {}
    sampling = {f"sampling_{key}": value for key, value in header.sampling.items()}
    plain = {**anatomy, **recipe, **sampling}
    return {key: value for key, value in plain.items() if isinstance(value, (str, int, float, bool))}


def name_of_run(run: Run) -> str:
    """The last part of its path."""
    return Path(run.path).name or "run"
