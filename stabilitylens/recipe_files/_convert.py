"""From what stands in a file to numbers and words: YAML reads ``3e-4`` as text, DeepSpeed writes ``auto``."""

from __future__ import annotations

import math
from typing import Any

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_PRECISIONS = {
    "float32": "fp32", "fp32": "fp32", "32": "fp32", "no": "fp32", "float16": "fp16", "fp16": "fp16", "half": "fp16",
    "16": "fp16", "bfloat16": "bf16", "bf16": "bf16", "float8": "fp8", "fp8": "fp8",
}


def number(value: Any) -> float | None:
    """A number, or a text that is one; None for anything else and for what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(found) else found


def decay(value: Any) -> float | None:
    """A decay rate, from 0 to below 1."""
    found = number(value)
    return found if found is not None and 0 <= found < 1 else None


def means_nothing(value: Any) -> bool:
    """Whether a value says that the framework is to decide: null, -1, 0, an empty text, ``auto``, ``none``, ``default``."""
    return value in (None, -1, 0, False) or str(value).strip().lower() in ("", "auto", "none", "null", "default")


def whole(value: Any) -> int | None:
    """A number without a fraction and not below zero."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found == int(found) and found >= 0 else None


def positive(value: Any) -> int | None:
    """A whole number above zero; frameworks write -1 or 0 for *not set*."""
    return whole(value) or None


def truth(value: Any) -> bool | None:
    """A yes or no."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def word(value: Any) -> str | None:
    """A text that is not empty."""
    return value.strip() or None if isinstance(value, str) else None


def precision(value: Any) -> str | None:
    """``fp32``, ``bf16``, ``fp16`` or ``fp8``, from what frameworks call them."""
    name = str(value).strip().lower().removeprefix("torch.").removesuffix("-mixed").removesuffix("-true")
    return _PRECISIONS.get(name)


def optimizer(value: Any) -> str | None:
    """The optimizer's class, from names such as ``adamw_torch_fused`` or ``paged_adamw_8bit``."""
    name = word(value)
    if name is None:
        return None
    known = ("AdamW", "RAdam", "NAdam", "Adamax", "Adafactor", "Adagrad", "Adam", "Muon", "Lion", "LAMB", "RMSprop", "SGD")
    return next((kind for kind in known if kind.lower() in name.lower()), name)
