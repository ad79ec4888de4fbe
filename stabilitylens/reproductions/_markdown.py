"""docs/claims.md: the ledger as a page, with a picture a claim beside it."""

from __future__ import annotations

from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.reproductions._ledger import Entry, Ledger
from stabilitylens.reproductions._popular import POPULAR, Popular
from stabilitylens.reproductions._svg import draw
from stabilitylens.reproductions._words import agreement, expected, measured, plans, tally

#: beside the page
PICTURES = Path("images", "claims")
HOW = """A verdict is *reproduced* where every expectation of the claim holds for every seed; *not reproduced* where one that decides fails
for half of the seeds or more; *mis-stated* where it fails and what the page expects instead holds; *partly* otherwise. Expectations and
tolerances stand in each claim's file. Sizes, learning rates and initial weights were tried out while a claim was written; where an
expectation or the set-up was changed after a first result, its section says so. `stabilitylens reproduce NAME` runs one again,
`--scale WIDTH` with wider models, on a GPU where there is one; under `torchrun --nproc-per-node N -m stabilitylens reproduce NAME
--scale WIDTH` the measurements are dealt over the ranks. Expectations and tolerances stay those of the small models."""


def page(ledger: Ledger, command: str) -> str:
    """All of the page, which names the command that made it."""
    kind = plans(ledger) + (" (small models, few steps), not the full ones" if ledger.mode == "quick" and not ledger.scale else "")
    origin = str(ledger.origin)
    intro = f"{origin[:1].upper()}{origin[1:]}, with the **{kind}**: {tally(ledger)}. Made by `{command}`."
    rows = [f"| [{e.name}](#{e.name}) | {cell(e.says)} | **{e.verdict}** | {e.seconds:.0f} |" for e in ledger.entries]
    table = ["| claim | as published | verdict on it | processor seconds |", "|---|---|---|---|", *rows]
    answers = [line for each in POPULAR for line in _answer(each, ledger)]
    said = ["## What is often said", "", *answers] if answers else []
    return "\n".join(["# Claims", "", intro, "", HOW, "", *table, "", *said, *(part for e in ledger.entries for part in _section(e))])


def _answer(popular: Popular, ledger: Ledger) -> list[str]:
    """A popular statement, what holds instead, and what was measured of it; nothing where not all of that is on the page."""
    entries = {entry.name: entry for entry in ledger.entries if entry.outcomes}
    if any(name not in entries for name, _ in popular.evidence):
        return []
    lines = [f"**“{popular.said}”** {popular.instead}", ""]
    for name, quantity in popular.evidence:
        found = [o for o in entries[name].outcomes if o.expect.quantity == quantity]
        lines += [f"- [{name}](#{name}), {cell(o.expect.text)}: {measured(o)}, expected {expected(o.expect)}: {agreement(o)}" for o in found]
    return [*lines, ""]


def _section(entry: Entry) -> list[str]:
    head = [f"## {entry.name}", "", entry.page, "", f"- Claim: {entry.says}", f"- Source: {entry.paper}", f"- Verdict: **{entry.verdict}**"]
    if entry.reason:
        return [*head, f"- Not run: {entry.reason}", ""]
    rows = [
        f"| {cell(o.expect.text)} | {o.expect.role} | {expected(o.expect)} | {measured(o)} | {agreement(o)} |" for o in entry.outcomes
    ]
    seeds = len(entry.outcomes[0].values)
    title = f"measured, {seeds} seeds: median (range)" if seeds > 1 else "measured"
    table = [f"| quantity | role | expected | {title} | as expected |", "|---|---|---|---|---|", *rows]
    picture = f"![{entry.name}]({(PICTURES / entry.name).as_posix()}.svg)"
    return [*head, f"- Measured: {entry.origin.days}", f"- Needs a bigger machine: {entry.bigger}", "", *table, "", picture, ""]


def cell(text: str) -> str:
    """A text in a table, where a bar would end the cell."""
    return text.replace("|", "\\|")


def write_page(ledger: Ledger, path: Path, command: str) -> None:
    """Write the page to ``path`` and the pictures beside it.

    Raises:
        BadInput: they can't be written.
    """
    folder = path.parent / PICTURES
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in ledger.entries:
            if entry.outcomes:
                (folder / f"{entry.name}.svg").write_text(draw(entry), encoding="utf-8")
        path.write_text(page(ledger, command), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {path} and the pictures beside it: {error.strerror}; give -o a file elsewhere") from error
