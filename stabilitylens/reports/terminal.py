"""The report in a terminal: the verdict first, then the evidence, then what is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stabilitylens.gravity import gravest_first
from stabilitylens.reports._initial import rows
from stabilitylens.reports._public import olmo_told
from stabilitylens.reports._reporter import reporter
from stabilitylens.reports._runs import LEADING, alike, gravest_runs
from stabilitylens.reports._series import trace_of
from stabilitylens.reports._sparkline import sparkline
from stabilitylens.reports._suspects_text import around, dumps, suspects
from stabilitylens.reports._words import number, sentence
from stabilitylens.reports.anatomy_text import draw

if TYPE_CHECKING:
    from stabilitylens.findings import Finding
    from stabilitylens.incidents import Incident
    from stabilitylens.recipe import Recipe
    from stabilitylens.report import Report, Subject
    from stabilitylens.run import Run

#: places of one rule that are listed
PLACES = 4
#: incidents of a run that are listed, the gravest; and runs of many that are told in a line each before all else
LISTED, OVERVIEW = 30, 25

STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}


@reporter("text")
def write(report: Report, stream: TextIO) -> None:
    """Colour where the stream is a terminal, 80 columns where it is none."""
    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    if len(report.subjects) > LEADING:
        console.print(_overview(report))
    like = {index: report.subjects[group[0]].name for group in alike(report.subjects) for index in group[1:]}
    for index, subject in enumerate(report.subjects):
        for part in _parts(subject, [entry for entry in report.suspects if entry["run"] == subject.name], like.get(index)):
            console.print(part)


def _overview(report: Report) -> RenderableType:
    """One line a run, the gravest first."""
    order = gravest_runs(report.subjects)
    lines = [Text.assemble((report.subjects[i].name, "bold"), f": {report.subjects[i].headline}") for i in order[:OVERVIEW]]
    more = [Text(f"and {len(order) - OVERVIEW} more runs, all of them below", style="dim")] if len(order) > OVERVIEW else []
    return Group(Text(f"{len(order)} runs, the gravest first", style="bold"), *lines, *more, Text())


def _parts(subject: Subject, entries: list[dict[str, Any]], like: str | None) -> Iterable[RenderableType]:
    """``like``: the name of another run of which the same rules did not fire. All text is ``rich.text.Text``: what a log or a model calls itself is never read as markup."""
    yield Rule(Text(subject.name, style="bold"), align="left")
    yield _headline(subject)
    yield from (Text(failure, style="bold red") for failure in subject.failures)
    if subject.run is not None:
        yield _curves(subject.run)
    if subject.incidents:
        yield _title("Incidents")
        yield _incidents(subject.incidents)
        if len(subject.incidents) > LISTED:
            yield Text(f"and {len(subject.incidents) - LISTED} lesser ones; all of them are in --format json", style="dim")
        yield Text(olmo_told(subject) or "", style="dim")
        yield from around(entries, subject)
    if entries:
        yield _title("Suspects")
        yield from suspects(entries, subject)
    if subject.dumps:
        yield _title("Kept by the black box")
        yield from dumps(subject)
    if subject.initial is not None:
        yield _title("One forward and backward before training")
        yield _initial(subject.initial)
    fired = subject.fired_by_rule()
    if fired:
        yield _title("Findings")
        yield from (_finding(group, subject.run) for group in fired)
    yield from _not_fired(subject) if like is None else [Text(f"\nWhat is clear and what was not evaluated is as in {like}.", style="dim")]
    yield from _quiet(subject)


def _headline(subject: Subject) -> Text:
    severities = [f.severity or "info" for f in subject.by_verdict("fired")] + [i.severity for i in subject.incidents]
    worst = next((name for name in STYLES if name in severities), None)
    calm = "bold green" if subject.by_verdict("clear") else "bold"
    return Text(sentence(subject.headline), style=STYLES[worst] if worst else calm)


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _curves(run: Run) -> RenderableType:
    """The loss and the gradient norm as one line each, with their first and last values."""
    table = Table.grid(padding=(0, 2))
    for name in ("loss", "grad_norm", "grad_norm_clipped"):
        if name not in run.series or run[name].axes or not run[name].observed():
            continue
        values = run[name].values
        finite = values[np.isfinite(values)]
        ends = f"{number(finite[0])} to {number(finite[-1])}" if finite.size else "never finite"
        line = sparkline(np.where(np.isnan(values), np.inf, values))
        table.add_row(Text(name), Text(line), Text(ends, style="dim"))
    happened = Counter(event.kind for event in run.events)
    about = [", ".join([f"{run.format}, {len(run)} series", *(f"{n} {kind}" for kind, n in happened.items())])]
    return Group(Text("\n".join(about + [f"note: {note}" for note in run.notes]), style="dim"), table)


def _incidents(incidents: tuple[Incident, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("what", "of", "steps", "peak", "what happened"):
        table.add_column(column, overflow="fold")
    for incident in gravest_first(incidents)[:LISTED]:
        kind = Text(incident.kind.replace("_", " "), style=STYLES[incident.severity])
        steps = f"{incident.start_step} to {incident.end_step}"
        table.add_row(
            kind, Text(incident.metric), Text(steps), Text(str(incident.peak_step)), Text(incident.explanation)
        )
    return table


def _initial(run: Run) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("what", "first", "last", "smallest", "largest"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows(run):
        ends = (row.first, row.last, row.smallest, row.largest) if row.places > 1 else (row.first,)
        table.add_row(Text(row.name), *(Text(number(value)) for value in ends))
    return table


def _recipe(recipe: Recipe) -> Iterable[Text]:
    known = {k: v for k, v in recipe.to_dict().items() if v is not None and k != "notes"}
    yield Text(", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in known.items()))
    yield from (Text(note, style="dim") for note in recipe.notes)


def _finding(group: list[Finding], run: Run | None) -> RenderableType:
    """A rule's first finding in full, its other places in a line each."""
    finding, severity = group[0], group[0].severity or "info"
    head = Text.assemble((severity, STYLES[severity]), f"  {finding.code} {finding.name}  ", (str(finding.where), "dim"))
    body = [Text(finding.message)]
    line = trace_of(finding, run) if run is not None else None
    if line is not None:
        body.append(Text.assemble((f"{line.name}  ", "dim"), sparkline(line.values, worse=line.worse)))
    if finding.observed is not None and finding.threshold is not None:
        body.append(Text(f"observed {number(finding.observed)}, threshold {number(finding.threshold)}"))
    body += [Text(f"also {other.where}: {other.message}") for other in group[1:PLACES]]
    if len(group) > PLACES:
        body.append(Text(f"and {len(group) - PLACES} more places, all of them in --format json", style="dim"))
    if finding.remedy:
        body.append(Text(f"remedy: {' '.join(finding.remedy.split())}"))
    body += [Text(source, style="dim", overflow="fold") for source in finding.sources]
    return Group(head, Padding(Group(*body), (0, 0, 1, 2), expand=False))


def _not_fired(subject: Subject) -> Iterable[RenderableType]:
    """What is clear, and what was not evaluated and why."""
    clear = list(dict.fromkeys(finding.name for finding in subject.by_verdict("clear")))
    if clear:
        yield _title("Clear")
        yield Text(", ".join(clear))
    missing = subject.not_evaluated()
    if missing:
        yield _title("Not evaluated")
        yield from (Text.assemble((lacks, "bold"), f": {', '.join(finding.name for finding in group)}") for lacks, group in missing.items())


def _quiet(subject: Subject) -> Iterable[RenderableType]:
    """What is not certain, and how much of the model was seen."""
    if subject.recipe is not None and subject.run is None:
        yield _title("Recipe")
        yield from _recipe(subject.recipe)
    if subject.anatomy is not None and subject.run is None:
        yield _title("Anatomy")
        yield Text(draw(subject.anatomy), no_wrap=True, overflow="ignore")
    elif subject.anatomy is not None and (subject.anatomy.uncertain or subject.anatomy.notes):
        yield _title("Not certain of the model")
        yield from (Text(line) for line in (*subject.anatomy.notes, ", ".join(subject.anatomy.uncertain)) if line)
    if subject.run is not None:
        yield _title("Coverage")
        yield Text(str(subject.header.coverage))
    yield Text()
