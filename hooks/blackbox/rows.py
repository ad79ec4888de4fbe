"""Takes a micro-batch apart into its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor


def row_count(batch: Any) -> int:
    """Rows of a micro-batch: the commonest first dimension of its tensors and arrays; 0 where it has none."""
    sizes = Counter(len(leaf) for leaf in _leaves(batch) if leaf.ndim > 0)
    return sizes.most_common(1)[0][0] if sizes else 0


def row(batch: Any, index: int, count: int) -> Any:
    """The micro-batch that holds one row; what has no dimension of rows stays whole."""
    if isinstance(batch, dict):
        return {key: row(value, index, count) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(row(value, index, count) for value in batch)
    if isinstance(batch, (Tensor, np.ndarray)) and batch.ndim > 0 and len(batch) == count:
        return batch[index : index + 1]
    return batch


def _leaves(value: Any) -> Iterator[Tensor | np.ndarray]:
    if isinstance(value, (Tensor, np.ndarray)):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _leaves(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _leaves(entry)
