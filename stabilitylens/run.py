"""Run: everything recorded of one training, read from disk or built in memory. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.header import Header

if TYPE_CHECKING:
    import pandas

#: format of a run that is one forward and backward of a model before training
INITIAL = "initial"


@dataclass(frozen=True)
class Series:
    """One metric over the steps of a run.

    Attributes:
        name: as in the run, e.g. ``max_attn_logit`` or ``grad_norm/layer``.
        steps: strictly increasing step numbers, shape (step,).
        values: shape (step, axes…); NaN where a value was not observed.
        axes: names of the axes after ``step``, e.g. ``("attention", "head")``; empty for a scalar.
        labels: names of the entries of an axis, e.g. the layers' module names.
        unit, definition: from the header; empty for a series of unknown origin.
    """

    name: str
    steps: Int[np.ndarray, " step"]
    values: Float[np.ndarray, "step *axes"]
    axes: tuple[str, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unit: str = ""
    definition: str = ""

    def __len__(self) -> int:
        return len(self.steps)

    def observed(self) -> bool:
        """Whether any value is not NaN (an infinite value was observed)."""
        return bool(np.any(~np.isnan(self.values)))


@dataclass(frozen=True)
class Event:
    """Something that happened at a step, e.g. ``step_skipped`` or ``lens_failure``, with a sentence."""

    step: int
    kind: str
    text: str = ""


@dataclass
class Run(Mapping[str, Series]):
    """The series of one run by name, with its header.

    ``run["max_attn_logit"]`` finds a series by its full name (``grad_norm/layer``) or by the metric's
    name: the scalar of that name if there is one, else its first array.

    Attributes:
        path: where it was read from.
        format: the reader that read it, e.g. ``recording``.
        header: what the recording says of itself.
        events: step-wise events, in order.
        notes: what a reader skipped or mended, one sentence each.
        superseded: what earlier sessions recorded beyond the step from which a later one resumed, a
            run for each such session, oldest first.
        summaries: what the recording derived for TensorBoard, by tag, e.g. ``max_attn_logit/median``;
            of use where the arrays are lost.
        loss_key: what the log itself calls the series that is ``loss`` here; None in recordings of ours and
            where no loss was found.
    """

    path: str
    series: dict[str, Series]
    header: Header = field(default_factory=Header)
    format: str = "memory"
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    superseded: list[Run] = field(default_factory=list)
    summaries: dict[str, Series] = field(default_factory=dict)
    loss_key: str | None = None

    def _places(self, name: str) -> list[str]:
        """The series of that name, or else all arrays of the metric."""
        if name in self.series:
            return [name]
        return [key for key, series in self.series.items() if series.axes and key.partition("/")[0] == name]

    def _resolve(self, name: str) -> str | None:
        return next(iter(self._places(name)), None)

    def __getitem__(self, name: str) -> Series:
        key = self._resolve(name)
        if key is None:
            raise KeyError(f"{self.path} has no series {name!r}; it has {', '.join(self.series) or 'none'}")
        return self.series[key]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._resolve(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.series)

    def __len__(self) -> int:
        return len(self.series)

    def why_missing(self, name: str) -> str | None:
        """Why a series cannot be used: None where it can, else one phrase that says what is lacking."""
        if name not in self:
            reason = next((r for what, r in self.header.coverage.not_observed if what == name), None)
            return f"{name} was not recorded" + (f": {reason}" if reason else "")
        if not any(self.series[key].observed() for key in self._places(name)):
            return f"{name} was recorded but never observed"
        return None

    def to_pandas(self) -> pandas.DataFrame:
        """A long table: step, series, then one column per axis and ``value``.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from error
        frames = []
        for series in self.series.values():
            where = np.indices(series.values.shape)
            columns: dict[str, Any] = {"step": series.steps[where[0].ravel()], "series": series.name}
            columns |= {axis: where[1 + i].ravel() for i, axis in enumerate(series.axes)}
            frames.append(pd.DataFrame(columns | {"value": series.values.ravel()}))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["step", "series", "value"])


def load(path: str | Path) -> Run:
    """Read a run: a log directory that ``attach`` wrote to, or a log that another tool wrote (docs/formats.md).

    Args:
        path: a file, plain or compressed, a folder, or ``-`` for standard input.

    Raises:
        stabilitylens.errors.BadInput: nothing readable is there; the message is one sentence that
            says what was found and what to do. So is several runs: ``stabilitylens.readers.read_all`` reads them.
    """
    from stabilitylens.readers import read

    return read(Path(path))
