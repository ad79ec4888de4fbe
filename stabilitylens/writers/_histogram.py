"""Histograms for TensorBoard's own tab: how the entries of an array are spread, at the steps of growing windows."""

from __future__ import annotations

import numpy as np
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.histogram import metadata
from tensorboard.util import tensor_util

#: TensorBoard's default is 30; an array has some thousand entries
BINS = 24


def histogram(tag: str, values: np.ndarray) -> summary_pb2.Summary.Value | None:
    """The finite entries of an array as a value of an event; None where there are none."""
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
    finite = stored[np.isfinite(stored)].astype(np.float64)
    if not finite.size:
        return None
    edges = np.linspace(finite.min(), finite.max(), BINS + 1)
    # entries that float64 hardly tells apart are one bin
    edges = edges if (np.diff(edges) > 0).all() else edges[[0, -1]]
    counts, _ = np.histogram(finite, edges)
    rows = np.stack((edges[:-1], edges[1:], counts), axis=1)
    meta = metadata.create_summary_metadata(display_name=None, description="all entries that are finite")
    return summary_pb2.Summary.Value(tag=tag, metadata=meta, tensor=tensor_util.make_tensor_proto(rows, np.float64))
