"""What running claims says: verdicts, numbers, pictures, slips."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from stabilitylens.cli import app
from stabilitylens.errors import BadInput
from stabilitylens.reproductions import CLAIMS, Entry, Expect, Outcome, chosen, reproduce
from stabilitylens.reproductions._markdown import page
from stabilitylens.reproductions._popular import POPULAR
from stabilitylens.reproductions._scale import scaled
from stabilitylens.reproductions._svg import _ticks, draw
from stabilitylens.reproductions._text import write_list
from stabilitylens.reproductions._words import expected, measured
from tests.invented_claims import invented


def test_nothing_left_to_measure_is_said(tmp_path: Path):
    for said in ("", "2 of 2 measurements are stored already; nothing is left to measure\n"):
        told = io.StringIO()
        reproduce([invented(1)], "quick", tmp_path, workers=1, console=Console(file=told, width=100))
        assert (told.getvalue() == said) or not said


def test_a_page_of_some_claims_names_its_command_and_answers_only_what_they_show(tmp_path: Path):
    out, path = tmp_path / "out", tmp_path / "some.md"
    command = ["reproduce", "stale-second-moment", "rms_norm_speed", "--quick", "--out", str(out), "--format", "markdown", "-o", str(path)]
    assert CliRunner().invoke(app(), command).exit_code == 0
    text = path.read_text()
    assert "`stabilitylens reproduce stale-second-moment rms_norm_speed --quick --format markdown -o some.md`" in text
    there = [popular for popular in POPULAR if popular.said in text]
    assert there and all({name for name, _ in popular.evidence} <= {"rms-norm-speed"} for popular in there)


def test_a_verdict_stands_beside_the_sentence_that_was_judged(tmp_path: Path):
    ledger = reproduce([invented(9)], "quick", tmp_path, workers=1)
    assert "| Numbers are small. | **not reproduced** |" in page(ledger, "")
    listed = io.StringIO()
    write_list([invented(9)], listed)
    assert "Numbers are small." in listed.getvalue() and "Numbers are large." not in listed.getvalue()


@pytest.mark.parametrize(
    ("low", "high", "value", "says", "shown"),
    [
        (65536, math.inf, 65536, "≥ 65,536", "65,536"),
        (65536, 65536, 65536.0, "65,536", "65,536"),
        (65536, math.inf, 65540, "≥ 65,536", "65,540"),
        (-math.inf, 100, 100.04, "≤ 100", "100.04"),
        (0.5, 1, 0.123456, "0.5 … 1", "0.123"),
        (1e-9, 1, 1.0000004e-9, "1e-09 … 1", "1.0000004e-09"),
        (0, math.inf, math.inf, "≥ 0", "inf"),
    ],
)
def test_numbers_are_printed_so_that_the_comparison_shows(low: float, high: float, value: float, says: str, shown: str):
    expect = Expect("q", "a quantity", low, high)
    assert expected(expect) == says and measured(Outcome(expect, (value,))) == shown


def test_pictures_show_the_spread_and_the_ends(tmp_path: Path):
    entry = reproduce([invented(1, 2)], "quick", tmp_path, workers=1).entries[0]
    assert draw(entry).count("fill-opacity") == 1
    same = {cell: {"value": [1.0, 1.0]} for cell in entry.cells}
    assert "fill-opacity" not in draw(replace(entry, cells=same))
    strip = draw(Entry.of(invented(1), "reproduced", outcomes=(Outcome(Expect("q", "a quantity", 10, 20), (12.0, 14.0)),)))
    assert ">a quantity: expected 10 … 20<" in strip and ">8.5<" in strip and ">21.5<" in strip
    long = Outcome(Expect("q", "a long quantity " * 20, 10, 20), (12.0,))
    lines = re.findall(r">([^<>]+)</text>", draw(Entry.of(invented(1), "reproduced", outcomes=(long,))))
    assert " ".join(lines).startswith(long.expect.text) and max(map(len, lines)) < 100


def test_slips_in_names_and_widths_are_said():
    with pytest.raises(BadInput, match="did you mean rank-collapse"):
        chosen(["rank-colapse"])
    with pytest.raises(BadInput, match="output-norm-without-qk-norm can't be made 48 wide"):
        scaled(CLAIMS["output-norm-without-qk-norm"], "quick", 48)
    with pytest.raises(BadInput, match="positive width"):
        scaled(CLAIMS["output-norm-without-qk-norm"], "quick", 0)


@pytest.mark.parametrize(
    ("axis", "expected"),
    [((4.3, 1.2e6, True), [1e1, 1e3, 1e5]), ((1e-9, 1.0, True), [1e-9, 1e-7, 1e-5, 1e-3, 1e-1]), ((2.0, 9.0, True), [2, 4, 6, 8]), ((-0.08, 0.33, False), [0, 0.1, 0.2, 0.3])],
)
def test_axes_bear_round_numbers(axis: tuple[float, float, bool], expected: list[float]) -> None:
    assert [pytest.approx(tick) for tick in _ticks(axis)] == expected
