"""Takes the numbers of a line apart by the text between them; lines with the same text between share one template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from stabilitylens.readers._text_numbers import GROUPS, NUMBER, PLAIN, to_float
from stabilitylens.readers._text_scan import Template, learn

#: templates that are remembered, and the longest text of one; numbers of a line that are looked at
REMEMBERED, WIDEST, MOST = 4096, 4096, 512
#: a template that was used so often is worth an expression of its own; so many are tried on a line
WORTH, TRIED = 16, 4


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
class _Shortcut:
    """One expression for all lines of a layout, with a group for each number that counts: ten times as fast."""

    whole: re.Pattern[str]
    template: Template


@dataclass
class Tokenizer:
    """Turns lines into pairs, and remembers the layouts that it has seen."""

    known: dict[tuple[str | tuple[int, ...] | None, ...], _Known] = field(default_factory=dict)
    shortcuts: list[_Shortcut] = field(default_factory=list)

    def __call__(self, line: str) -> Pairs | None:
        """The pairs of a line; None where it has none."""
        for i, shortcut in enumerate(self.shortcuts):
            found = shortcut.whole.fullmatch(line)
            if found is not None:
                if i:
                    self.shortcuts.insert(0, self.shortcuts.pop(i))
                return _pairs(shortcut.template, found.groups())
        parts = NUMBER.split(line, MOST)
        return self._slowly(line, parts) if len(parts) > 1 else None

    def _slowly(self, line: str, parts: list[str | None]) -> Pairs | None:
        numbers, words = parts[1::GROUPS + 1], parts[2::GROUPS + 1]
        kinds = tuple((number is None) - (word is None) for number, word in zip(numbers, words, strict=True))
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
            self.shortcuts = [_shortcut(line, template), *self.shortcuts[:TRIED - 1]]
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


#: any number; any date, clock or time to go
_ANY = rf"(?:{PLAIN}|[-+]?(?:nan|NaN|inf|Inf))"
_TIME = r"[IWEF]?[\d:.,/+TZ -]{1,40}(?:days?, [\d:.]{1,16})?(?: [AP]M)?"


def _shortcut(line: str, template: Template) -> _Shortcut:
    """The expression of a line's layout."""
    pattern, last = "", 0
    groups = {field.place: f"({PLAIN})" if field.counts else f"({_ANY})" for field in template.fields}
    for i, found in enumerate(NUMBER.finditer(line)):
        if i >= MOST:
            break
        pattern += _blanks(line[last:found.start()])
        if found.lastindex is None:
            pattern += _TIME
        else:
            pattern += groups.get(1 + i * (GROUPS + 1), f"(?:{PLAIN})") + re.escape(found[GROUPS] or "")
        last = found.end()
    return _Shortcut(re.compile(pattern + _blanks(line[last:])), template)


def _blanks(text: str) -> str:
    """The text, with any number of blanks for blanks."""
    return r"\s+".join(re.escape(piece) for piece in re.split(r"\s+", text))
