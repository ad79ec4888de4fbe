"""Reads tables that a log prints: names in one line, numbers under them in the lines that follow."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stabilitylens.readers._names import loss_rank, step_rank
from stabilitylens.readers._text_numbers import cell
from stabilitylens.readers._text_pairs import Pairs

_BLANKS = re.compile(r"\s{2,}|\t")
_RULE = re.compile(r"[-=+|:\s_─━═]*")
_WORD = re.compile(r"\S+")
#: names in a header, from and to; characters of one
FEWEST, MOST, LONGEST = 2, 64, 40


@dataclass
class Tables:
    """The header in force, if any: names, where they begin, and what stands between fields."""

    names: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    between: str = ""

    def __call__(self, line: str) -> Pairs | None:
        """The row that a line is under the header in force; None where it is none, a header among them."""
        if not any(c.isdigit() for c in line):
            self._header(line)
            return None
        row = self._row(line) if self.names else None
        if row is None:
            return None
        counters = {name: value for name, value in row.items() if step_rank(name) is not None}
        return Pairs(counters, {name: value for name, value in row.items() if name not in counters})

    def _header(self, line: str) -> None:
        if len(line) > MOST * LONGEST or _RULE.fullmatch(line):
            return
        for between in ("|", ",", "  ", " "):
            names = [name.strip() for name in _fields(line, between)]
            if FEWEST <= len(names) <= MOST and all(0 < len(name) <= LONGEST for name in names) and _names_columns(names, between):
                self.names, self.between = names, between
                places = [found.start() for found in _WORD.finditer(line)] if between in ("  ", " ") else []
                self.places = places if len(places) == len(names) else []
                return

    def _row(self, line: str) -> dict[str, float] | None:
        fields = _fields(line, self.between if self.between in ("|", ",") else " ")
        if len(fields) < len(self.names) and self.places:
            return self._by_place(line)
        if len(fields) < len(self.names) or cell(fields[0]) is None:
            return None
        if len(fields) > len(self.names) and not fields[len(self.names) - 1].endswith(":"):
            return None
        values = {name: cell(text) for name, text in zip(self.names, fields, strict=False)}
        return {name: value for name, value in values.items() if value is not None}

    def _by_place(self, line: str) -> dict[str, float] | None:
        """A row with empty cells: each number belongs to the name that it begins under."""
        row: dict[str, float] = {}
        for found in _WORD.finditer(line):
            value = cell(found[0])
            if value is None:
                return None
            under = max((i for i, place in enumerate(self.places) if place <= found.start() + 1), default=0)
            row[self.names[under]] = value
        return row if len(row) > 1 else None


def _fields(line: str, between: str) -> list[str]:
    if between == "|":
        return line.strip().strip("|").split("|")
    if between == ",":
        return line.split(",")
    return _BLANKS.split(line.strip()) if between == "  " else line.split()


def _names_columns(names: list[str], between: str) -> bool:
    """Whether words name the columns of a table: each once, a loss among them; in a sentence also a counter or a second."""
    losses = sum(loss_rank(name) > 0 for name in names)
    counters = sum(step_rank(name) is not None for name in names)
    return len(set(names)) == len(names) and losses > 0 and (between in ("|", "  ") or losses + counters > 1)
