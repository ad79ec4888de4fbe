"""What a process brings to a sample of several processes, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stabilitylens.hooks.descriptions import Description
from stabilitylens.hooks.packing import Rows
from stabilitylens.hooks.partial import Values
from stabilitylens.hooks.ring import Waiting


@dataclass(frozen=True)
class Contribution:
    """What a process brings to a sample.

    Attributes:
        rows: by tap and own key, parameters by name; None where reading them failed.
        rates: learning rates by name of a parameter.
        partial: parts of sums over processes that are yet to be taken, by tap and name.
        describe: says what this process observes; called when that may have changed.
        checksum: of its parameters, 0 where it took no step.
        failures: of the lens since the last sample.
    """

    rows: Rows | None
    rates: Mapping[str, float]
    partial: Values
    describe: Callable[[], Description]
    checksum: float
    failures: int


@dataclass(frozen=True)
class Whole:
    """What came of it, the same in every process: scalars of the steps that waited, rows of the whole model, events."""

    ring: Waiting
    rows: Rows | None = None
    rates: dict[int, float] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
