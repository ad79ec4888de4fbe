"""What counts as a number in a line of a log, and what only looks like one."""

from __future__ import annotations

import math
import re

#: what looks like numbers and is none: dates, clocks, places in source code, identifiers in hexadecimal
_NOISE = r"""
    ^[IWEF]\d{4}\ [\d:.]+\s+\d+
  | \d{4}[-/]\d\d[-/]\d\d(?:[T\ _]+\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z\b|\s?[+-]\d\d:?\d\d)?)?
  | \d\d/\d\d(?:/\d{2,4})?[\ ,]+\d\d:\d\d:\d\d(?:[.,]\d+)?(?:\ [AP]M)?
  | (?<![\w.])(?:\d+\ days?,\ )?\d{1,4}:\d\d(?::\d\d(?:[.,]\d+)?)?(?![\w:]|\.\d)
  | (?<=\.py)"?(?:,\ line\ |:)\d+ | (?<=\.cc):\d+ | (?<=\.cpp):\d+
  | (?<=[A-Za-z_]):\d{1,5}(?=\)\ (?:INFO|WARNING|DEBUG|ERROR))
"""
#: not inside a word, path, version, or after a hyphen; but right behind "step", and the end of "1-20batch"
_BEFORE = r"(?:(?<![\w.@\#$\\-])(?<![A-Za-z_]/)|(?<=[Ee]poch)|(?<=[Ss]tep)|(?<=[Ii]ter)|(?<=\d-)(?=\d+(?:batch|iter|step)))"
PLAIN = r"[-+−]?(?:\d{1,3}(?:,\d{3}){1,8}(?!,?\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_WORD = r"[-+]?(?:[nN][aA][nN](?:xxx?)?|inf|Inf|INF|[Ii]nfinity|None|null|N/A|n/a|No\ Log)(?:\(ind\))?"
_SUFFIX = r"%|[A-Za-zµ]+(?:/[A-Za-z]+)?"
_NUMBER = rf"""
    {_NOISE}
  | (?: {_BEFORE}({PLAIN})
      | (?<![\w./-])({_WORD})(?=(?:ms|s|%)?(?![\w/-]|\ (?:iteration|value|or\ |found|check|detected|gradient)))
    )({_SUFFIX})?(?![\w]|\.\d)
"""
#: splits a line into gap, number, word, suffix, gap, …; the three are None for noise
NUMBER = re.compile(_NUMBER, re.VERBOSE)
GROUPS = 3

_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def to_float(text: str) -> float:
    """A number as logs spell it; what was not observed (``None``, ``n/a``) is NaN."""
    try:
        return float(text)
    except ValueError:
        plain = text.replace(",", "").replace("−", "-").removesuffix("(ind)")
    try:
        return float(plain)
    except ValueError:
        return math.nan


def scale_of(suffix: str | None) -> float:
    """What a suffix multiplies by: ``85.8G`` is 8.58e10; units leave the number alone."""
    return _SCALES.get(suffix or "", 1.0)


#: 2,31: no thousands, as those have three digits; so many make a file one of decimal commas. *Heuristic*.
_COMMA, _POINT, FEW = re.compile(r"(?<![\d.,:])\d+,(?:\d{1,2}|\d{4,})(?![\d.,])"), re.compile(r"\d\.\d"), 5
_BETWEEN_DIGITS = re.compile(r"(?<=\d),(?=\d)")


def has_decimal_commas(text: str) -> bool:
    """Whether numbers are written as 2,31 throughout."""
    commas = len(_COMMA.findall(text))
    return commas >= FEW and commas > len(_POINT.findall(text))


def with_points(line: str) -> str:
    """A line of a file of decimal commas, with points."""
    return _BETWEEN_DIGITS.sub(".", line)


_CELL = re.compile(rf"\s*({PLAIN}|{_WORD})([kKMGBT]?)(?:/\d+|%|[A-Za-z/]+|:)?\s*")


def cell(text: str) -> float | None:
    """The number a table's cell holds, of ``3/100`` the first; None where it holds something else."""
    found = _CELL.fullmatch(text)
    return to_float(found[1]) * scale_of(found[2]) if found else None
