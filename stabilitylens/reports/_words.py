"""Numbers and sentences as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from os.path import commonpath, relpath

import numpy as np
from jaxtyping import Float


def number(value: float) -> str:
    """Three significant digits: ``0.0123``, ``4.56``, ``22,000``, ``1.2e-07``, ``inf``."""
    if 1000 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def rounded(values: Float[np.ndarray, " n"]) -> list[float | None]:
    """Four significant digits, enough for a picture; None for what is not finite."""
    return [short(value) if math.isfinite(value) else None for value in values.tolist()]


def short(value: float) -> float:
    """Four significant digits; the largest numbers stay as they are, for rounded up they would be infinite."""
    near = float(f"{value:.4g}")
    return near if math.isfinite(near) else value


def sentence(text: str) -> str:
    """With a capital, unless it opens with the name of a metric, and a full stop."""
    first = text.partition(" ")[0]
    head = text[:1] if "_" in first else text[:1].upper()
    return f"{head}{text[1:].rstrip('.')}."


def without_formula(text: str) -> str:
    """A definition without its LaTeX, which stands on the metric's page."""
    return re.sub(r"(:| =)?\s*\$[^$]*\$", "", text)


def short_names(names: Sequence[str]) -> list[str]:
    """Paths without the folders that all of them share; as they are where that leaves nothing to tell them by."""
    try:
        shared = commonpath(names)
        short = [relpath(name, shared) for name in names] if shared else list(names)
    except ValueError:
        return list(names)
    return short if len(set(short)) == len(short) > 1 and "." not in short else list(names)
