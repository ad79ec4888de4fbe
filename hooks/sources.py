"""Which tensor a projection was given, so that queries and keys of the same positions are told from those of others.

Two tensors have one source where both are made, position by position, of the same tensor. A new source begins wherever
that can no longer be told: at a product of activations, at a sum of two streams, where positions are picked or moved.
Lengths tell nothing: source and target of a translation may be equally long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from stabilitylens.hooks.functions import Function, named
from stabilitylens.hooks.provenance import Provenance
from stabilitylens.hooks.shares import local

#: change the layout and leave every position where it is
ARRANGING = named(
    "view", "reshape", "transpose", "permute", "contiguous", "flatten", "unflatten", "swapaxes", "swapdims", "movedim",
    "moveaxis", "unsqueeze", "squeeze", "view_as_complex", "view_as_real", "t",
)  # fmt: skip
#: may pick features and leave every position where it is
PICKING = named("__getitem__", "narrow", "chunk", "split", "split_with_sizes", "tensor_split")
#: keep the shape and move positions
MOVING = named("roll", "flip", "sort", "gather", "take_along_dim", "index_select", "scatter", "flipud", "fliplr", "rot90")
CONVOLUTIONS = named("conv1d", "conv2d", "conv3d")


@dataclass(frozen=True, eq=False)
class Source:
    """Stands for one tensor, and is equal to itself alone; ``rows`` are its positions over the batch."""

    rows: int


@dataclass(frozen=True)
class Place:
    """Where a tensor comes from.

    Attributes:
        sources: what it is made of, in order.
        rows: how many positions it has over the batch if none was left out since its projection or, where there was none,
            since its source; None where nothing can have been left out.
    """

    sources: tuple[Source, ...]
    rows: int | None = None

    @staticmethod
    def unknown() -> Place:
        """Like no other."""
        return Place((Source(0),), 0)


def joined(places: Iterable[Place], along_features: bool) -> Place:
    """The place of several tensors put together."""
    parts = list(places)
    rows = {p.rows for p in parts}
    if along_features:
        sources = tuple(dict.fromkeys(s for p in parts for s in p.sources))
        return Place(sources, rows.pop() if len(rows) == 1 else 0)
    return Place(tuple(s for p in parts for s in p.sources), 0 if None in rows else sum(p.rows or 0 for p in parts))


class Sources:
    """Keeps the source of each tensor that no projection made."""

    def __init__(self) -> None:
        self._places: Provenance[Place] = Provenance()

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()

    def of(self, tensor: Tensor) -> Place:
        """The place of a tensor, which is a source itself where it comes from none."""
        place = self._places.get(tensor)
        if place is None:
            place = Place((Source(_rows(tensor)),))
            self._places.set(tensor, place)
        return place

    def arranged(self, func: Function, before: Any, out: Any) -> None:
        """A tensor has a new layout, or is cut into parts."""
        if not isinstance(before, Tensor) or not before.is_floating_point():
            return
        if func in ARRANGING and isinstance(out, Tensor):
            self._places.set(out, self.of(before))
        elif func in PICKING:
            for part in (out,) if isinstance(out, Tensor) else out:
                if part.shape[:-1] == before.shape[:-1]:
                    place = self.of(before)
                    self._places.set(part, replace(place, rows=place.sources[0].rows))

    def changed(self, func: Function, alike: list[Tensor], out: Tensor, adds: bool) -> None:
        """A tensor was made of others of its shape, element by element; a sum of two is a source of its own."""
        if alike and func not in MOVING and not (adds and len(alike) > 1):
            self._places.set(out, self.of(alike[0]))


def _rows(x: Tensor) -> int:
    part = local(x)
    return 0 if part.is_nested or not part.dim() else part.numel() // max(1, part.shape[-1])


def rows_given(func: Function, x: Tensor) -> int:
    """How many positions a projection was given."""
    part = local(x)
    return part.numel() // max(1, part.shape[1]) if func in CONVOLUTIONS and not part.is_nested and part.dim() > 2 else _rows(x)
