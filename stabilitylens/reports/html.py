"""The report as one self-contained page: pictures first, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TextIO

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from stabilitylens import __version__
from stabilitylens.findings import SEVERITIES
from stabilitylens.gravity import gravest_first
from stabilitylens.reports._figures import embed, figures
from stabilitylens.reports._initial import rows
from stabilitylens.reports._public import olmo_told
from stabilitylens.reports._reporter import reporter
from stabilitylens.reports._runs import LEADING, alike, gravest_runs
from stabilitylens.reports._suspects import excluded, first_of, leading, untested
from stabilitylens.reports._words import number, sentence, short_names
from stabilitylens.reports.anatomy_svg import draw_svg

if TYPE_CHECKING:
    from stabilitylens.anatomy import Anatomy
    from stabilitylens.report import Report, Subject


#: incidents of one run that are listed, the gravest
LISTED = 50


@reporter("html")
def write(report: Report, stream: TextIO) -> None:
    """One page of under 6 MB, most of which is plotly's script; a report without curves has no script."""
    groups = [(i, group) for i, subject in enumerate(report.subjects) for group in subject.fired_by_rule()]
    data = figures(report, [(i, group[0]) for i, group in groups])
    code = scripts() if data["curves"] or data["maps"] else []
    suspected = [found for i in range(len(report.subjects)) if (found := _suspects(report, i))["leading"]]
    page = _environment().get_template("report.html.jinja").render(
        report=report, groups=groups, figures=data, data=embed(data), scripts=code, style=own("report.css"),
        names=short_names([subject.name for subject in report.subjects]), policy=policy(code), version=__version__, drawings=[_drawing(s.anatomy) for s in report.subjects],
        suspected=suspected, listed=LISTED, first=[first_of(entry for entry in report.suspects if entry["run"] == s.name) for s in report.subjects], order=gravest_runs(report.subjects), alike=alike(report.subjects), leading=LEADING, shown={(found["index"], entry["name"]) for found in suspected for entry in found["leading"]},
        initial=[list(rows(s.initial)) if s.initial is not None else [] for s in report.subjects],
    )
    stream.write(page)


def _suspects(report: Report, index: int) -> dict[str, Any]:
    """Those of one run: the leading ones in full, the excluded ones by name."""
    subject = report.subjects[index]
    entries = [entry for entry in report.suspects if entry["run"] == subject.name]
    return {"index": index, "subject": subject, "leading": leading(entries), "excluded": excluded(entries), "untested": untested(entries, subject)}


def _environment() -> Environment:
    out = Environment(
        loader=PackageLoader("stabilitylens", "reports"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )
    out.filters |= {"number": number, "prose": prose, "sentence": sentence, "worst": _worst, "tally": _tally, "field": _field, "gravest": gravest_first, "olmo": olmo_told}
    return out


def own(name: str) -> Markup:
    """A file of this folder, as it is."""
    return Markup(files("stabilitylens.reports").joinpath(name).read_text(encoding="utf-8"))


def scripts() -> list[Markup]:
    """Plotly, and what draws the figures of a page with it."""
    from plotly.offline import get_plotlyjs

    return [Markup(get_plotlyjs()), own("report.js")]


def policy(scripts: Iterable[str]) -> str:
    """Only these scripts may run, and nothing may be loaded, whatever a log has in it."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(s.encode()).digest()).decode()}'" for s in scripts) or "'none'"
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _drawing(anatomy: Anatomy | None) -> Markup:
    """The model as a picture."""
    return draw_svg(anatomy) if anatomy is not None else Markup("")


def prose(text: str) -> Markup:
    """Escaped, with `code` as code; a line break counts only before a bullet or an empty line."""
    flowing = re.sub(r"(?<!\n)\n(?!\n|- )", " ", text.strip())
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(flowing))))


def _field(value: Any) -> str:
    """A field of a recipe or an anatomy."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _worst(subject: Subject) -> str:
    """The worst severity of a subject; ``clear`` if some rule is, else ``unknown``."""
    found = [f.severity or "info" for f in subject.by_verdict("fired")] + [i.severity for i in subject.incidents]
    if found:
        return max(found, key=SEVERITIES.__getitem__)
    return "clear" if subject.by_verdict("clear") else "unknown"


def _tally(subject: Subject) -> str:
    """Rules, as the headline counts them: ``2 errors, 1 warning, 7 clear, 1 not evaluated``."""
    fired = Counter(group[0].severity or "info" for group in subject.fired_by_rule())
    parts = [f"{fired[s]} {s}{'s' if fired[s] > 1 and s != 'info' else ''}" for s in reversed(SEVERITIES) if fired[s]]
    parts += [f"{len(subject.incidents)} incident{'s' if len(subject.incidents) > 1 else ''}"] if subject.incidents else []
    parts += [f"{len(subject.by_verdict('clear'))} clear", f"{len(subject.by_verdict('not_evaluated'))} not evaluated"]
    return ", ".join(parts)
