"""Numbers as people read them."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Three significant digits: ``0.0123``, ``4.56``, ``22,000``, ``1.2e-07``, ``inf``."""
    if not math.isfinite(value):
        return str(float(value))
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.3g}"
    if 1000 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.2e}"
