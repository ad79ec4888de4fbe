"""Numbers as logs spell them."""

from __future__ import annotations

import re

_SUFFIX = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_DECORATED = re.compile(
    r"[\s$~'\"]*(?:tensor\(|array\()?"
    r"([-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"([kKMGBT]?)(?:\s*(?:%|[a-zA-Zµ]+(?:/[a-zA-Z]+)?))?"
    r"(?:\s*[(\[][^)\]]*[)\]]|,[^)]*\)|\))?[\s'\"]*"
)
_SHARE = re.compile(r"\s*(\d+)\s*/\s*\d+\s*(?:\([\d. ]*%\))?\s*")
_NONFINITE = re.compile(r"\s*(?:tensor\()?([-+]?)(nan|inf(?:inity)?|1\.#inf|1\.#qnan|-?nan\(\w*\))[)\s(].*", re.IGNORECASE | re.DOTALL)


def number(text: str) -> float | None:
    """The number that a text spells; None where it spells none, as ``n/a`` and ``No Log``.

    Understands every spelling of NaN and infinity, ``85.8G``, ``1,024``, ``12.5%``, ``3 ms``, ``tensor(0.5)``; of
    ``0.31 (0.35)``, a value with its running mean, the value; of ``1/547`` the first number.
    """
    try:
        return float(text)
    except ValueError:
        pass
    if len(text) > 100:
        return None
    if (found := _SHARE.fullmatch(text)) is not None:
        return float(found[1])
    if (found := _DECORATED.fullmatch(text)) is not None:
        return float(found[1].replace(",", "")) * _SUFFIX.get(found[2], 1.0)
    if (found := _NONFINITE.fullmatch(text + " ")) is not None:
        return float(found[1] + ("inf" if "inf" in found[2].lower() else "nan"))
    return None
