"""Remembers where a tensor came from for as long as it lives."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

from torch import Tensor

Record = TypeVar("Record")


class Provenance(Generic[Record]):
    """A record per tensor object, by identity, without keeping the tensor alive."""

    def __init__(self) -> None:
        self._table: dict[int, tuple[weakref.ref[Tensor], Record]] = {}

    def set(self, tensor: Tensor, record: Record | None) -> None:
        """Remember a record for a tensor; None is none."""
        if record is None:
            return
        self._table[id(tensor)] = (weakref.ref(tensor), record)

    def get(self, tensor: Any) -> Record | None:
        """The record of a tensor; None for anything else, and for a new tensor at an old address."""
        entry = self._table.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def clear(self) -> None:
        """Forget everything."""
        self._table.clear()

    def __len__(self) -> int:
        return len(self._table)
