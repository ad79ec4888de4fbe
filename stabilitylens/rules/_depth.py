"""Gradients by depth: each block against the last one, so that loss scale and batch size cancel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stabilitylens.rules._rule import Lacks
from stabilitylens.rules._track import RECENT, levels
from stabilitylens.run import Series


def against_last(series: Series) -> Series:
    """Each layer's value over that of the last layer with one; NaN where that is zero or infinite.

    Raises:
        Lacks: it has no layers, or the last block's gradient is hardly ever usable.
    """
    if series.values.ndim != 2:
        raise Lacks("resid_grad_norm by layer")
    seen = np.flatnonzero(~np.isnan(levels(series)))
    if len(seen) < 2:
        raise Lacks("resid_grad_norm of at least two blocks")
    last = np.asarray(series.values[:, seen[-1]], dtype=np.float64)
    usable = np.where((last > 0) & np.isfinite(last), last, np.nan)
    if np.sum(~np.isnan(usable)) < min(RECENT, len(usable)):
        raise Lacks(f"{RECENT} samples in which the last block has a finite gradient that is not zero")
    with np.errstate(over="ignore"):
        return replace(series, values=series.values / usable[:, None])
