"""Advice and proposals in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stabilitylens.advice._advice import Advice, Choice
from stabilitylens.advice._proposal import Change, Proposal

if TYPE_CHECKING:
    from stabilitylens.advice._document import Advisory
    from stabilitylens.advice._source import Source
    from stabilitylens.findings import Finding

STYLES = {"strong": "bold green", "moderate": "bold cyan", "weak": "bold yellow", "heuristic": "bold yellow"}
SEVERITIES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}


def write_text(document: Advisory, stream: TextIO) -> None:
    """Colour where the stream is a terminal, 80 columns where it is none."""
    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    parts = _advice(document) if isinstance(document, Advice) else _proposal(document)
    for part in parts:
        console.print(part)


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _advice(advice: Advice) -> Iterator[RenderableType]:
    yield Rule(Text(advice.situation.title, style="bold"), align="left")
    yield from (Text(scenario.title) for scenario in advice.scenarios)
    yield _summary(advice)
    for choice in advice.choices:
        yield _choice(choice)
    yield _title("Taken for granted")
    yield from (Text(sentence) for sentence in advice.assumptions)
    yield _title("What our own rules say of this")
    yield from _verdicts(advice.findings)


def _summary(advice: Advice) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "take", "evidence"):
        table.add_column(column, overflow="fold")
    for choice in advice.choices:
        table.add_row(Text(choice.heading), Text(choice.title), Text(choice.strength, style=STYLES[choice.strength]))
    return table


def _choice(choice: Choice) -> RenderableType:
    decided = "; ".join(str(decision) for decision in choice.decided_by) or "no narrower case applies"
    body = [
        _line("why", choice.why),
        _line("because", decided),
        _line("evidence", " ".join(part for part in (f"{choice.strength}.", choice.scale_note) if part)),
        _line("against it", choice.contradicts),
        _line("costs", choice.costs),
        *(_line("rejected", f"{other.title}. {other.why}") for other in choice.rejected),
        *_sources(choice.sources),
    ]
    head = Text.assemble((choice.heading, "bold"), ": ", choice.title)
    return Group(head, Padding(Group(*body), (0, 0, 1, 2), expand=False))


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name}: ", "dim"), text)


def _sources(sources: Iterable[Source]) -> Iterator[Text]:
    for source in sources:
        cited = f"{source.title}, {source.url} ({source.read})" if source.url else source.title
        yield Text(cited, style="dim", overflow="fold")


def _verdicts(findings: Sequence[Finding]) -> Iterator[Text]:
    """How many rules said what; what fired, and what was not evaluated and why."""
    found = [finding.verdict for finding in findings]
    yield Text(f"{found.count('fired')} fired, {found.count('clear')} clear, {found.count('not_evaluated')} not evaluated")
    yield from (_fired(finding) for finding in findings if finding.verdict == "fired")
    missing = [finding for finding in findings if finding.verdict == "not_evaluated"]
    yield from (Text(f"not evaluated: {finding.name}: {finding.lacks}", style="dim") for finding in missing)


def _fired(finding: Finding) -> Text:
    severity = finding.severity or "info"
    return Text.assemble((severity, SEVERITIES[severity]), f"  {finding.code} {finding.name}: {finding.message}")


def _proposal(proposal: Any) -> Iterator[RenderableType]:
    assert isinstance(proposal, Proposal)
    yield Rule(Text(proposal.model, style="bold"), align="left")
    yield Text(proposal.headline.removeprefix(f"{proposal.model}: "))
    yield from (Text(note, style="dim") for note in proposal.anatomy.notes)
    if proposal.fired:
        yield _title("What the audit found")
        yield from (_fired(finding) for finding in proposal.fired)
    for heading, changes in (("Change", proposal.changes), ("To clear the information as well", proposal.optional)):
        if changes:
            yield _title(heading)
            yield from (_change(change) for change in changes)
    if proposal.left:
        yield _title("Nothing known clears")
        yield from (_fired(finding) for finding in proposal.left)
    yield _title("Judged again with the change" if proposal.changes else "As it is")
    yield from _verdicts(proposal.after)


def _change(change: Change) -> RenderableType:
    body = [_line("for", ", ".join(change.clears)), _line("costs", change.costs)]
    body += [_line(name, f"{shown(old)} to {shown(new)}") for name, (old, new) in change.fields.items()]
    return Group(Text(change.say), Padding(Group(*body), (0, 0, 1, 2), expand=False))


def shown(value: Any) -> str:
    """A field for a person."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
