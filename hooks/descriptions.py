"""What a process tells the others of what it observes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stabilitylens.anatomy import Anatomy

#: a few numbers that are equal where two processes hold the same values
Print = tuple[float, ...]
Site = tuple[str, int]


@dataclass(frozen=True)
class Held:
    """A parameter on one process: its share of it, how many elements that has, and what tells its values apart."""

    group: tuple[int, ...]
    part: tuple[int, ...]
    size: int
    print: Print


@dataclass(frozen=True)
class Description:
    """What one process observes.

    Attributes:
        data: ranks that train the same part of the model on other data; empty where nothing told.
        stage: its pipeline stage where that is known; divided: by what a pipeline's schedule divides gradients.
        parameters: by name; slots: print by tap and key; rows: how many a slot has.
        layers, attention, norms: sites in the order of a forward.
        anatomy: of its part of the model.
        partial: how many values there are of a sum that has yet to be taken, by tap and parameter.
    """

    rank: int
    data: tuple[int, ...]
    stage: int | None
    blocks: tuple[str, ...]
    parameters: Mapping[str, Held]
    slots: Mapping[tuple[str, Hashable], Print]
    rows: Mapping[tuple[str, Hashable], int]
    layers: tuple[Site, ...]
    attention: tuple[Site, ...]
    norms: tuple[Site, ...] = ()
    branch_kinds: Mapping[int, str] = field(default_factory=dict)
    partial: Mapping[tuple[str, str], int] = field(default_factory=dict)
    divided: int = 1
    anatomy: Anatomy | None = None


def same(a: Print, b: Print) -> bool:
    """Whether two prints are of the same values, up to the rounding of a reduction."""
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=1e-9, atol=0, equal_nan=True))
