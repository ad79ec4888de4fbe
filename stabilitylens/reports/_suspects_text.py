"""What happened around the incidents, and who is suspected, as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stabilitylens.gravity import gravest_first
from stabilitylens.reports._suspects import excluded, first_of, leading, untested

if TYPE_CHECKING:
    from stabilitylens.report import Subject

#: incidents whose surroundings are printed, and movements of each; all of them are in the JSON
SHOWN, MOVED = 3, 3


def around(entries: list[dict[str, Any]], subject: Subject) -> Iterable[RenderableType]:
    """Who moved first, what coincided, who is suspected first, and what the log cannot show, of the gravest incidents."""
    known = {id(i): c for i, c in zip(subject.incidents, subject.contexts, strict=False) if c is not None}
    first = {id(subject.incidents[index]): name for index, name in first_of(entries).items()}
    for incident in [i for i in gravest_first(subject.incidents) if id(i) in known][:SHOWN]:
        context = known[id(incident)]
        lines = [Text(context.sentence)] if context.sentence else []
        lines += [Text(f"then {movement}") for movement in context.moved[1:MOVED]]
        lines += [Text(f"coincided: {event.text}") for event in context.coincident]
        lines += [Text(f"first suspect: {first[id(incident)]}")] if id(incident) in first else []
        lines += [Text(sentence, style="dim") for sentence in context.cannot_show]
        head = Text(f"around the {incident.kind.replace('_', ' ')} at step {incident.start_step}", style="bold")
        yield Group(head, Padding(Group(*lines), (0, 0, 1, 2), expand=False))


def dumps(subject: Subject) -> Iterable[RenderableType]:
    """Of each incident that the black box kept: the incident, its replay, its cure, and where each lies or what to call for it."""
    for dump in subject.dumps:
        table = Table.grid(padding=(0, 2))
        for stage in dump.stages:
            lines = [Text(line) for line in stage.said]
            lines += [Text(stage.path, style="dim", overflow="fold")] if stage.path else []
            lines += [Text(f"next: {stage.call}", overflow="fold")] if stage.call else []
            table.add_row(Text(stage.name), Group(*lines))
        yield Group(Text(f"step {dump.step}", style="bold"), Padding(table, (0, 0, 1, 2), expand=False))


def suspects(entries: list[dict[str, Any]], subject: Subject) -> Iterable[RenderableType]:
    """The leading ones with their evidence, and the excluded ones by name."""
    for entry in leading(entries):
        incident = subject.incidents[entry["incident"]]
        head = Text.assemble(
            (f"{entry['score']:.2f}", "bold"), f"  {entry['name']}  ",
            (f"of the {incident.kind.replace('_', ' ')} at step {incident.start_step}", "dim"),
        )  # fmt: skip
        body = [Text(entry["summary"])]
        body += [Text(f"+ {text}") for text in entry["evidence_for"]]
        body += [Text(f"- {text}") for text in entry["evidence_against"]]
        body.append(Text(f"to settle it: {entry['experiment']}"))
        yield Group(head, Padding(Group(*body), (0, 0, 1, 2), expand=False))
    yield from (Text(f"not tested yet: {dump.calls[-1]} tries cures on step {dump.step}") for dump in untested(entries, subject))
    names = excluded(entries)
    if names:
        yield Text(f"excluded: {', '.join(names)}", style="dim")
