"""Takes the numbers of a line apart by the text between them; lines with the same text between share one template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stabilitylens.readers._text_layout import MOST, Layout, layout_of
from stabilitylens.readers._text_numbers import GROUPS, NUMBER, to_float
from stabilitylens.readers._text_scan import Template, learn

#: templates that are remembered, and the longest text of one
REMEMBERED, WIDEST = 4096, 4096
#: a template that was used so often is worth an expression of its own; so many are tried on a line
WORTH, TRIED = 16, 12


@dataclass
class Pairs:
    """What a line says.

    Attributes:
        counters: steps, iterations, epochs, by name.
        values: everything else, by name; of evaluation with ``val/`` before it.
        bar: whether the line is the frame of a progress bar.
    """

    counters: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    bar: bool = False


@dataclass
class _Known:
    """A template that was seen before, and how often."""

    template: Template
    used: int = 0


@dataclass
class Tokenizer:
    """Turns lines into pairs, and remembers the layouts that it has seen.

    Attributes:
        last: the layout of the last line, where it has one; alike: whether the line before had the same.
    """

    known: dict[tuple[Any, ...], _Known] = field(default_factory=dict)
    shortcuts: list[Layout] = field(default_factory=list)
    last: Layout | None = None
    alike: bool = False

    def __call__(self, line: str) -> Pairs | None:
        """The pairs of a line; None where it has none."""
        before, self.last = self.last, None
        for layout in (before.next if before is not None else None, *self.shortcuts):
            found = layout.whole.fullmatch(line) if layout is not None else None
            if layout is not None and found is not None:
                if before is not None:
                    before.next = layout
                self.last, self.alike = layout, before is layout
                return _pairs(layout.template, found.groups())
        parts = NUMBER.split(line, MOST)
        return self._slowly(line, parts) if len(parts) > 1 else None

    def _slowly(self, line: str, parts: list[str | None]) -> Pairs | None:
        numbers, words = parts[1::GROUPS + 1], parts[2::GROUPS + 1]
        kinds: tuple[int | str | None, ...] = tuple((number is None) - (word is None) for number, word in zip(numbers, words, strict=True))
        # what counts is whole, and a whole number is no value behind a mere word of a bar
        kinds += tuple(number and number.lstrip("+").replace(",", "").isdigit() for number in numbers)
        layout = (*parts[::GROUPS + 1], *parts[GROUPS::GROUPS + 1], kinds)
        known = self.known.get(layout)
        if known is None:
            known = _Known(learn(line, parts))
            if len(line) <= WIDEST:
                if len(self.known) >= REMEMBERED:
                    self.known.clear()
                self.known[layout] = known
        template = known.template
        if not template.fields:
            return Pairs(bar=True) if template.bar else None
        known.used += 1
        if known.used == WORTH:
            self.shortcuts = [layout_of(line, template), *self.shortcuts[:TRIED - 1]]
        return _pairs(template, [parts[field.place] or parts[field.place + 1] for field in template.fields])


def _pairs(template: Template, numbers: Sequence[str | None]) -> Pairs:
    """The pairs of the numbers that stand in the places of a template."""
    pairs = Pairs(bar=template.bar)
    for field_, number in zip(template.fields, numbers, strict=True):
        value = to_float(number or "nan") * field_.scale
        if not field_.counts:
            pairs.values[field_.name] = value
        elif value == value:
            pairs.counters[field_.name] = value
    return pairs


def trains(found: Pairs) -> bool:
    """Whether anything in a line is not of a validation."""
    return not all(name.startswith("val/") for name in found.values)


def tells_death(found: Pairs) -> bool:
    """Whether a line tells one number, and that is not finite."""
    return len(found.values) == 1 and all(math.isnan(value) or math.isinf(value) for value in found.values.values())
