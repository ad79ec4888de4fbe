"""A comparison as one self-contained page."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from jinja2 import Environment, PackageLoader, StrictUndefined

from stabilitylens import __version__
from stabilitylens.report import Subject
from stabilitylens.reports._curves import curves
from stabilitylens.reports._figures import embed
from stabilitylens.reports._words import number, sentence, short_names
from stabilitylens.reports.html import own, policy, scripts

if TYPE_CHECKING:
    from stabilitylens.comparison._comparison import Comparison

#: partings and tables that are shown; all of them are in the JSON
PARTINGS, TABLES = 40, 12
#: scalars that are drawn, those that part first
DRAWN = 8


def write_page(found: Comparison, stream: TextIO) -> None:
    """One page, the curves of what parts first on it; nothing is loaded from elsewhere."""
    names, pictures = short_names([run.path for run in found.runs]), _pictures(found)
    data = {"runs": names, "curves": pictures, "maps": [], "findings": []}
    code = scripts() if pictures else []
    page = _environment().get_template("comparison.html.jinja").render(
        found=found, names=names, pictures=pictures, data=embed(data), scripts=code, style=own("report.css"),
        policy=policy(code), version=__version__, partings=PARTINGS, tables=TABLES,
    )  # fmt: skip
    stream.write(page)


def _pictures(found: Comparison) -> list[dict[str, object]]:
    """The loss, and the scalars that part first, all runs on the same axes."""
    subjects = [Subject(run.path, (), run=run, incidents=each) for run, each in zip(found.runs, found.incidents, strict=True)]
    order = [p.series for pair in found.pairs for p in pair.partings if p.step is not None]
    every = {curve["title"]: curve for curve in curves(subjects)}
    wanted = [name for name in dict.fromkeys(["loss", *order]) if name in every][:DRAWN]
    return [every[name] | {"id": f"curve-{i}"} for i, name in enumerate(wanted)]


def _environment() -> Environment:
    out = Environment(
        loader=PackageLoader("stabilitylens", "comparison"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    out.filters |= {"number": number, "sentence": sentence}
    return out
