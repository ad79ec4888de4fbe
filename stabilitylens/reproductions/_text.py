"""The ledger, and the list of claims, in a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stabilitylens.reproductions._claim import Claim
from stabilitylens.reproductions._ledger import Entry, Ledger
from stabilitylens.reproductions._words import agreement, expected, measured, plans, strip, tally

COLOURS = {"reproduced": "bold green", "partly": "bold yellow", "not reproduced": "bold red", "mis-stated": "bold magenta", "not run": "dim"}
#: columns where the stream is no terminal
WIDTH = 120


def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False, emoji=False, markup=False, width=None if stream.isatty() else WIDTH)


def write_list(claims: Iterable[Claim], stream: TextIO) -> None:
    """Names and what they are about, with the budgets."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("claim", "as published", "quick", "full"):
        table.add_column(title, justify="left" if title in ("claim", "as published") else "right", no_wrap=title == "claim")
    for claim in claims:
        table.add_row(claim.name, claim.says, f"{claim.quick.seconds:.0f} s", f"{claim.full.seconds:.0f} s")
    console = _console(stream)
    console.print(table)
    console.print("Budgets are seconds of one quiet core, which all cores share. `stabilitylens reproduce NAME --quick` runs one, `all` all of them.")


def write(ledger: Ledger, stream: TextIO, *, as_json: bool = False) -> None:
    """Each claim with what was expected, what was measured and the verdict, for a reader or as JSON."""
    if as_json:
        json.dump(ledger.to_dict(), stream, indent=1)
        stream.write("\n")
        return
    console = _console(stream)
    for entry in ledger.entries:
        console.print(Text(f"{entry.name}: ", "bold") + Text(entry.verdict, COLOURS[entry.verdict]))
        console.print(Padding(Text(f"{entry.says} ({entry.paper})", "dim"), (0, 0, 0, 2)))
        if entry.reason:
            console.print(Padding(Text(entry.reason), (0, 0, 0, 2)))
        if entry.outcomes:
            console.print(Padding(_outcomes(entry), (0, 0, 0, 2)))
    console.print(f"{tally(ledger)}; {plans(ledger)}, {ledger.origin}")


def _outcomes(entry: Entry) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("expected", "", "measured, median (and range) over seeds", "", "as expected"):
        table.add_column(title)
    for o in entry.outcomes:
        role = {"decisive": "", "supporting": "supporting", "corrected": "what is true instead"}[o.expect.role]
        text = Text(o.expect.text) + Text(f" [{role}]" if role else "", "dim")
        table.add_row(text, expected(o.expect), measured(o), strip(o), agreement(o))
    return table
