"""Sufficient statistics, and how they combine.

A tap on a device never computes a metric: it adds a row of these, in float64. Rows combine exactly
over micro-batches and over ranks, field by field, with SUM or MAX; metrics are pure functions of
the combined rows. A row that nothing was added to has ``count`` (or ``rows``) 0 and yields NaN:
not observed is never zero.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

import numpy as np
from jaxtyping import Float, Int

Rows = TypeVar("Rows", bound="Statistics")


@dataclass(frozen=True)
class Statistics:
    """Base of the row types: float64 arrays of one shape, one per field."""

    #: fields that combine by maximum; all others combine by sum
    BY_MAX: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    @functools.cache
    def names(cls) -> tuple[str, ...]:
        """Field names in buffer order."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def identity(cls) -> Float[np.ndarray, " field"]:
        """The row that changes nothing when combined: 0 for sums, -inf for maxima."""
        return np.array([-np.inf if name in cls.BY_MAX else 0.0 for name in cls.names()])

    @classmethod
    def from_rows(cls: type[Rows], rows: Float[np.ndarray, "*where field"]) -> Rows:
        """Split a buffer of rows into named fields."""
        return cls(*map(np.asarray, np.moveaxis(np.asarray(rows, dtype=np.float64), -1, 0)))

    def combine(self: Rows, other: Rows) -> Rows:
        """Combine two sets of rows elementwise, e.g. of two micro-batches."""
        return type(self)(*(
            np.asarray((np.maximum if name in self.BY_MAX else np.add)(getattr(self, name), getattr(other, name)))
            for name in self.names()
        ))

    def pool(self: Rows, index: Int[np.ndarray, " row"], size: int) -> Rows:
        """Combine rows that share an index, e.g. the parameters of a layer.

        Args:
            index: target of each row, below 0 to leave the row out.
            size: number of targets.

        Returns:
            Rows of length ``size``; a target without rows holds the identity.
        """
        keep = index >= 0
        pooled = {}
        for name, empty in zip(self.names(), self.identity(), strict=True):
            out = np.full(size, empty)
            ufunc = np.maximum if name in self.BY_MAX else np.add
            ufunc.at(out, index[keep], getattr(self, name)[keep])
            pooled[name] = out
        return type(self)(**pooled)


@dataclass(frozen=True)
class Moments(Statistics):
    """Moments of the elements of a tensor; ``nonfinite`` ones are in ``count`` and make sums NaN or inf."""

    BY_MAX: ClassVar[frozenset[str]] = frozenset({"abs_max"})
    count: Float[np.ndarray, "*where"]
    sum: Float[np.ndarray, "*where"]
    sum_abs: Float[np.ndarray, "*where"]
    sum_sq: Float[np.ndarray, "*where"]
    abs_max: Float[np.ndarray, "*where"]
    nonfinite: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class AttentionMoments(Statistics):
    """Per query head of an attention call, over the query rows that see at least one key.

    ``sum_entropy`` is Σ H in nat; ``sum_entropy_ratio`` is Σ H / ln(visible keys) over the
    ``rows_gt1`` rows that see more than one; ``masked_rows`` see none and are in no other field.
    ``max_logit`` is the largest q·k·scale over visible pairs.
    """

    BY_MAX: ClassVar[frozenset[str]] = frozenset({"max_logit"})
    rows: Float[np.ndarray, "*where"]
    rows_gt1: Float[np.ndarray, "*where"]
    max_logit: Float[np.ndarray, "*where"]
    sum_entropy: Float[np.ndarray, "*where"]
    sum_entropy_ratio: Float[np.ndarray, "*where"]
    sum_lse: Float[np.ndarray, "*where"]
    sum_query_norm: Float[np.ndarray, "*where"]
    masked_rows: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class KeyValueMoments(Statistics):
    """Per key/value head of an attention call, over the keys that at least one query sees."""

    rows: Float[np.ndarray, "*where"]
    sum_key_norm: Float[np.ndarray, "*where"]
    sum_value_norm: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class AdamMoments(Statistics):
    """Per parameter: Σ g²/max(v̂, ε²) with the second moment that includes this step, entries with √v̂ < ε."""

    count: Float[np.ndarray, "*where"]
    sum_ratio_sq: Float[np.ndarray, "*where"]
    below_eps: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class LogitMoments(Statistics):
    """Output logits, over positions: Σ ln Z in nat and the largest magnitude."""

    BY_MAX: ClassVar[frozenset[str]] = frozenset({"abs_max"})
    rows: Float[np.ndarray, "*where"]
    sum_log_z: Float[np.ndarray, "*where"]
    abs_max: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class NormMoments(Statistics):
    """Per head, what a projection made of the rows that attention then used: Σ of L2 norms over d_head."""

    rows: Float[np.ndarray, "*where"]
    sum_norm: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class CappedMoments(Statistics):
    """Per query head of an attention call whose logits are bounded by a soft-cap: the largest one before it."""

    BY_MAX: ClassVar[frozenset[str]] = frozenset({"max_logit"})
    max_logit: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class GainMoments(Statistics):
    """Of the gain of a normalisation layer: Σ|γ| over its elements."""

    count: Float[np.ndarray, "*where"]
    sum_abs: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class SlopeMoments(Statistics):
    """Of the slope α of an element-wise stand-in for a norm: Σα over its elements."""

    count: Float[np.ndarray, "*where"]
    sum: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class FourthMoments(Statistics):
    """Of the elements of a tensor: their squares and fourth powers."""

    count: Float[np.ndarray, "*where"]
    sum_sq: Float[np.ndarray, "*where"]
    sum_4: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class RouterMoments(Statistics):
    """Of the router of a mixture of experts: tokens that it saw, Σ of its entropy in nat."""

    tokens: Float[np.ndarray, "*where"]
    sum_entropy: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class ExpertMoments(Statistics):
    """Per expert: tokens that its router saw, and those of them that it chose this expert for."""

    tokens: Float[np.ndarray, "*where"]
    chosen: Float[np.ndarray, "*where"]


@dataclass(frozen=True)
class ExpertGradMoments(Statistics):
    """Per expert: elements of its parameters that have a gradient, and Σ g²."""

    count: Float[np.ndarray, "*where"]
    sum_sq: Float[np.ndarray, "*where"]
