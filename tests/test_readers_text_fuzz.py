"""Nothing in a text crashes the readers of text, and a shortcut reads what the long way reads."""

from __future__ import annotations

import math
import random
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_formats import FORMATS

from stabilitylens.errors import BadInput
from stabilitylens.readers import READERS
from stabilitylens.readers._rows import Mark
from stabilitylens.readers._table import Alike
from stabilitylens.readers._text_keys import name_of
from stabilitylens.readers._text_numbers import NUMBER, cell, to_float
from stabilitylens.readers._text_pairs import Pairs, Tokenizer
from stabilitylens.readers._text_rows import rows_of, rows_of_blocks

#: pieces that mean something to the readers, to be thrown together
_PIECES = [
    "step", "iter", "epoch", "loss", "val", "Train", "lr", "nan", "inf", "it/s", "s/it", "%|", "|", ":", "=", "==", " ", "  ", "\t", "[", "]", "(", ")", "{", "}", "'", '"', ",", ";",
    "/", "\\", "-", "—", "█", "\r", "\n", "\x1b[31m", "\x1b[A", "\x08", "\0", "\ufeff", "1", "0.5", "1e-05", "1,234", "2020-01-01 12:00:00,123", "1 day, 3:04:05", "99%", "100/500", "85.8G",
    "tensor(", "NaN", "None", "Skipping step", "OVERFLOW!", "{'loss': 2.0}", '{"loss": 1', "self.x", "for i in x:", "....", "é", "\u2028", "9" * 400, "-", "+", ".", "e", "E308",
]  # fmt: skip
_MESS = st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=8)), max_size=60).map("".join)


def _fine(rows: list) -> bool:
    return all(isinstance(row, Mark) or all(isinstance(k, str) and isinstance(v, float) for k, v in row.items()) for row in rows)


@given(st.lists(_MESS, max_size=12))
@settings(max_examples=200, deadline=None)
def test_any_text_gives_rows_of_numbers(some: list[str]) -> None:
    assert _fine(list(rows_of("\n".join(some).split("\n"))))


@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_damaged_logs_give_rows_of_numbers(name: str, seed: int, wounds: int) -> None:
    chance = random.Random(seed)
    text = list(FORMATS[name].text())
    for _ in range(wounds):
        at = chance.randrange(len(text))
        text[at:at + chance.randrange(4)] = chance.choice(_PIECES)
    assert _fine(list(rows_of("".join(text).replace("\r", "\n").split("\n"))))


@given(st.binary(max_size=400), st.sampled_from(sorted(FORMATS)), st.integers(0, 1000))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_in_a_log_never_raise_but_bad_input(tmp_path: Path, some: bytes, name: str, at: int) -> None:
    path = tmp_path / "a.log"
    whole = FORMATS[name].text().encode()
    path.write_bytes(whole[:at] + some + whole[at:4000])
    for reader in ("text", "megatron", "fairseq", "llmc"):
        assert 0 <= READERS[reader].sniff(path) <= 1
        try:
            READERS[reader].read(path)
        except BadInput as error:
            assert "\n" not in str(error)


@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_shortcut_reads_what_the_long_way_reads(name: str, seed: int) -> None:
    chance, quick, slow = random.Random(seed), Tokenizer(), Tokenizer()
    lines = [line for line in FORMATS[name].text().replace("\r", "\n").split("\n") if "\x1b" not in line]
    for line in lines:
        if chance.random() < 0.3:
            numbers = [found.span() for found in NUMBER.finditer(line) if found.lastindex]
            if numbers:
                begin, end = chance.choice(numbers)
                line = line[:begin] + chance.choice(["nan", "7", "-0.25", "1e-3", "1,024", "1.2.3", "x", "", "12:30:01", "3/4"]) + line[end:]
        slow.shortcuts.clear()
        assert _same(quick(line), slow(line)), line


def _same(a, b) -> bool:
    a, b = a or Pairs(), b or Pairs()
    return a.bar == b.bar and all(
        x.keys() == y.keys() and all(x[k] == y[k] or (math.isnan(x[k]) and math.isnan(y[k])) for k in x) for x, y in ((a.counters, b.counters), (a.values, b.values))
    )


@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 2**32), st.integers(0, 12), st.integers(1, 4000))
@settings(max_examples=120, deadline=None)
def test_many_lines_at_once_read_as_line_by_line(name: str, seed: int, wounds: int, size: int) -> None:
    chance = random.Random(seed)
    lines = (FORMATS[name].text().replace("\r\n", "\n").replace("\r", "\n") * chance.randrange(1, 4)).split("\n")
    for _ in range(wounds):
        at = chance.randrange(len(lines))
        lines[at] = chance.choice([lines[at][:9], lines[at] + chance.choice(_PIECES).replace("\n", ""), chance.choice(lines), "", "a sentence", "nan"]).replace("\r", "")
    whole, blocks = [line + "\n" for line in lines], []
    while whole:
        some, whole = whole[:size], whole[size:]
        blocks.append("".join(some))
    at_once = [row for some in rows_of_blocks(blocks) for row in (some.rows() if isinstance(some, Alike) else [some])]
    assert repr(at_once) == repr(list(rows_of(lines)))


def test_a_plain_log_is_read_many_lines_at_once() -> None:
    found = list(rows_of_blocks([FORMATS["nanogpt"].text() * 5]))
    assert any(isinstance(some, Alike) and len(some["loss"]) > 3 for some in found)


@given(st.text(max_size=300), st.booleans())
def test_a_name_is_short_and_on_one_line(gap: str, first: bool) -> None:
    name, _ = name_of(gap, first)
    assert len(name) <= len(gap) + 5
    assert name == name.strip()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_as_it_was_printed(value: float) -> None:
    for text in (repr(value), f"{value:.6E}", f"{value:g}"):
        assert to_float(text) == float(text) == cell(text)
        found = Tokenizer()(f"step 1 loss: {text} end")
        assert found is not None and found.values == {"loss": float(text)}


@given(st.integers(0, 10**15))
def test_thousands_may_be_grouped(value: int) -> None:
    found = Tokenizer()(f"tokens: {value:,} end")
    assert found is not None and found.values == {"tokens": float(value)}
