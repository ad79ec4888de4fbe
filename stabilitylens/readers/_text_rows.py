"""Puts what the lines of a log say together to rows: a line, a block of lines, or a frame of a progress bar each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stabilitylens.readers import _names
from stabilitylens.readers._rows import Mark
from stabilitylens.readers._table import Alike
from stabilitylens.readers._text_chatter import loss_rank, without_chatter
from stabilitylens.readers._text_layout import Layout
from stabilitylens.readers._text_lines import Plain, prepared
from stabilitylens.readers._text_pairs import Pairs, Tokenizer, tells_death, trains
from stabilitylens.readers._text_skips import LONGEST, RANK, Skips
from stabilitylens.readers._text_tables import Tables

step_rank = _names.step_rank
Row = dict[str, float]
#: a line this many after the last of a row does not belong to it
NEAR = 6
#: frames of as many steps are kept open, as several workers draw one bar
FRAMES = 32
#: kinds of lines that are remembered
KINDS = 4096
#: a loss without any counter is believed from its third line on: a script at the head has such lines, too
BELIEVED = 3
_DIED = re.compile(r"\bloss\b.{0,60}\b(?:nan|inf|infinite|infinity)\b|\b(?:nan|inf|infinite)\b.{0,20}\bloss\b", re.I)
_QUOTES = re.compile(r"^wandb:|\bif\b|[\"']")


def rows_of(lines: Iterable[str]) -> Iterator[Row | Mark]:
    """Rows of the lines of a text log, and marks for what happened between them."""
    book, whole = _Book(), Plain()
    return without_chatter(_rows(book, (piece for line in lines for part in prepared(line).split("\n") for piece in whole(part)), whole))


def rows_of_blocks(blocks: Iterable[str]) -> Iterator[Row | Alike | Mark]:
    """As ``rows_of``, of whole lines that come many at a time; lines of one layout are read at once."""
    return without_chatter(_blocks(_Book(), map(prepared, blocks)))


def _rows(book: _Book, pieces: Iterable[str], whole: Plain) -> Iterator[Row | Mark]:
    for piece in pieces:
        yield from book.line(piece)
    for piece in whole.end():
        yield from book.line(piece)
    yield from book.end()


def _blocks(book: _Book, blocks: Iterable[str]) -> Iterator[Row | Alike | Mark]:
    whole = Plain()
    for block in blocks:
        at = 0
        while at < len(block):
            layout = book.layout()
            if layout is not None:
                groups, at = layout.run(block, at)
                yield from book.lines(layout, groups) if groups else ()
                if groups:
                    continue
            end = block.index("\n", at)
            line, at = block[at:end], end + 1
            pieces = whole(line)
            for piece in pieces:
                yield from book.line(piece)
            if len(pieces) != 1 or pieces[0] is not line:
                book.pairs.last = None
    for piece in whole.end():
        yield from book.line(piece)
    yield from book.end()


@dataclass
class _Open:
    """A row that further lines may add to; own: the counters in its own line."""

    own: Row = field(default_factory=dict)
    row: Row = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    at: int = 0


@dataclass
class _Book:
    """What is remembered between lines.

    Attributes:
        context: counters of lines that only count, and of bars.
        frames: rows of bars by their counters; held: losses without counters by name, until they are believed.
        added: names in lines that followed a row.
        last: the row that was told last; behind: whether bars stand behind the values that they count.
        loss_key: the best name of a loss so far; at: the number of the line.
        rank: that whose losses are read; others: the number of lines of other ranks; skips: what lines tell of skipped steps.
    """

    pairs: Tokenizer = field(default_factory=Tokenizer)
    table: Tables = field(default_factory=Tables)
    context: Row = field(default_factory=dict)
    open: _Open | None = None
    frames: dict[tuple[tuple[str, float], ...], Row] = field(default_factory=dict)
    held: dict[str, list[Row]] = field(default_factory=dict)
    added: set[tuple[str, ...]] = field(default_factory=set)
    believed: set[str] = field(default_factory=set)
    last: Row = field(default_factory=dict)
    behind: bool = False
    loss_key: str = ""
    at: int = 0
    rank: str | None = None
    others: int = 0
    skips: Skips = field(default_factory=Skips)

    def line(self, line: str) -> Iterator[Row | Mark]:
        """Read one line."""
        self.at += 1
        if self.skips.speaks(line):
            yield from self._flush()
            if self.skips.told(line):
                yield Mark("step_skipped", line.strip())
        found = self.pairs(line)
        if found is None or not found.values:
            found = self.table(line) or found
        if found is not None and not found.counters and tells_death(found):
            yield from self._flush()
            found = None if self.loss_key else found
        if found is None:
            yield from self._sentence(line)
        elif ("ank" in line or "RANK" in line or "worker" in line or "proc" in line) and self._of_another(line, found):
            return
        elif found.bar and (found.counters or not trains(found)):
            yield from self._frame(found, "100%|" in line)
        elif found.values:
            yield from self._values(found)
        elif found.counters:
            yield from self._sentence(line)
            yield from self._flush()
            self.context = {key: value for key, value in self.context.items() if key == "epoch"} | found.counters

    def _of_another(self, line: str, found: Pairs) -> bool:
        """Whether a line with a loss is of another rank than the first such line."""
        rank = RANK.search(line)
        if rank is None or not any(map(loss_rank, found.values)):
            return False
        self.rank = rank[1] if self.rank is None else self.rank
        if rank[1] == self.rank:
            return False
        self.others += 1
        self.pairs.last = None
        return True

    def layout(self) -> Layout | None:
        """The layout of the last two lines, where lines of it are rows of their own that nothing can add to."""
        layout = self.pairs.last if self.pairs.alike else None
        if layout is None or not self.loss_key or not layout.alone:
            return None
        return layout if layout.template.bar or self.open is not None else None

    def lines(self, layout: Layout, groups: list[tuple[str, ...]]) -> Iterator[Row | Alike]:
        """Read lines that follow two of the same layout; the last ones stay open."""
        self.at += len(groups)
        some = layout.columns(groups)
        counters = [field.name for field in layout.template.fields if field.counts]
        inherited = self._inherited(dict.fromkeys(counters, 0.0))
        rows = Alike({name: [value] * len(groups) for name, value in inherited.items() if name not in some} | some)
        if layout.template.bar:
            yield from self._bars(rows, counters)
            return
        yield from self._flush()
        last = {name: numbers.pop() for name, numbers in rows.items()}
        if len(groups) > 1 and self.skips.scale:
            yield self._told({name: numbers.pop(0) for name, numbers in rows.items()})
        if len(groups) > 1 and len(next(iter(rows.values()))):
            yield rows
        self._told(last)
        own = {name: last[name] for name in counters}
        self.open = _Open(own, last, last.keys() - own.keys() - inherited.keys(), self.at)

    def _bars(self, rows: Alike, counters: list[str]) -> Iterator[Row | Alike]:
        """Frames one after the other: of those at one step the last counts, and the last ones may still be drawn again."""
        keys = list(zip(*(rows[name] for name in rows if name in counters), strict=True))
        if len(set(keys)) == len(keys) > FRAMES and self.frames.keys().isdisjoint(tuple(zip(counters, key, strict=True)) for key in keys):
            yield from self._flush()
            last = Alike({name: numbers[-FRAMES:] for name, numbers in rows.items()})
            yield Alike({name: numbers[:-FRAMES] for name, numbers in rows.items()})
            rows = last
        for row in rows.rows():
            yield from self._framed({name: row[name] for name in counters}, row, False)

    def end(self) -> Iterator[Row | Mark]:
        """What is still open; if nothing else had a loss, also what was not believed."""
        if self.others:
            yield Mark("left_out", f"{self.others} lines of ranks other than {self.rank} were left out")
        if self.behind and self.open is not None:
            self.open.row = self.context | self.open.row
        yield from self._flush()
        if not self.loss_key:
            for rows in self.held.values():
                yield from rows if len(rows) > 1 else ()

    def _sentence(self, line: str) -> Iterator[Row]:
        """A sentence that says that the loss has become NaN."""
        if self.loss_key and len(line) <= LONGEST and _DIED.search(line) and not _QUOTES.search(line):
            yield from self._flush()
            yield {name: value + 1 for name, value in self.last.items() if step_rank(name) is not None} | {self.loss_key: math.nan}

    def _frame(self, found: Pairs, full: bool) -> Iterator[Row]:
        """A frame takes the place of the last one at its step; bars that are full one after the other are of several epochs."""
        if not found.values:
            self.context |= found.counters
            now = self.open
            if now is not None and now.own.keys() <= {"epoch"} and len(now.row) > 1 and now.row.keys().isdisjoint(found.counters):
                now.row |= found.counters
                self.behind = True
            return
        yield from self._framed(found.counters, self._inherited(found.counters) | found.counters | found.values, full)

    def _framed(self, counters: Row, row: Row, full: bool) -> Iterator[Row]:
        if self.open is not None:
            yield from self._flush()
        key = tuple(counters.items())
        known = self.frames.get(key)
        if known is not None and full and any(known.get(name, value) != value for name, value in row.items()):
            yield from self._flush()
        elif known is not None:
            known |= row
            return
        self.frames[key] = row
        if len(self.frames) > FRAMES:
            yield self._told(self.frames.pop(next(iter(self.frames))))

    def _values(self, found: Pairs) -> Iterator[Row]:
        now = self.open
        if now is not None and found.counters in ({}, now.own) and _adds(now.row, found.values):
            if self._belongs(now, found):
                now.row |= found.values
                now.names |= found.values.keys()
                now.at = self.at
                return
            if not any(map(loss_rank, found.values)):
                return
        yield from self._flush()
        row = self._inherited(found.counters) | found.counters | found.values
        self.open = _Open(found.counters, row, set(found.values), self.at)

    def _belongs(self, now: _Open, found: Pairs) -> bool:
        """Whether a line adds to the row before it: by its counters, as part of a block, or as lines before it did."""
        if found.counters:
            return True
        names = tuple(found.values)
        known = names in self.added or any(map(loss_rank, names))
        if len(self.added) < KINDS:
            self.added.add(names)
        return self.at - now.at <= NEAR and (known or not now.own)

    def _inherited(self, own: Row) -> Row:
        """Counters that lines before this one gave; a line that counts steps itself, or has its bar behind it, is only given its epoch."""
        if self.behind or own.keys() - {"epoch"}:
            return {key: value for key, value in self.context.items() if key == "epoch"}
        return {key: value for key, value in self.context.items() if key not in own}

    def _flush(self) -> Iterator[Row]:
        for row in self.frames.values():
            yield self._told(row)
        self.frames.clear()
        now, self.open = self.open, None
        if now is None:
            return
        losses = [name for name in now.names if loss_rank(name)]
        if now.own or (losses and len(now.row) > len(now.names)):
            yield self._told(now.row)
        elif losses:
            yield from self._weighed(max(losses, key=loss_rank), now.row)

    def _told(self, row: Row) -> Row:
        self.last = row = self.skips.onto(row)
        best = max(row, key=loss_rank)
        if loss_rank(best) > loss_rank(self.loss_key):
            self.loss_key = best
        return row

    def _weighed(self, key: str, row: Row) -> Iterator[Row]:
        """A row without any counter: believed when its like has come up a few times, and rows with counters have no such loss."""
        if key in self.believed:
            yield row
        if key in self.believed or key == self.loss_key:
            return
        held = self.held.setdefault(key, [])
        held.append(row)
        if len(held) >= BELIEVED:
            self.believed.add(key)
            yield from self.held.pop(key)


def _adds(row: Row, values: Row) -> bool:
    """Whether values are new to a row, and none contradicts it."""
    return not values.keys() <= row.keys() and all(row.get(name, value) == value for name, value in values.items())
