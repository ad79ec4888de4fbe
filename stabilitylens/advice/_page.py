"""Advice and proposals as one self-contained page without scripts."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, TextIO

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stabilitylens import __version__
from stabilitylens.advice._text import shown
from stabilitylens.reports._words import sentence
from stabilitylens.reports.html import prose

if TYPE_CHECKING:
    from stabilitylens.advice._document import Advisory

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"


def write_page(document: Advisory, stream: TextIO) -> None:
    """Loads nothing, and shows the same as the text."""
    environment = Environment(
        loader=PackageLoader("stabilitylens", "advice"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )
    environment.filters |= {"prose": prose, "sentence": sentence, "shown": shown}
    style = Markup(files("stabilitylens.reports").joinpath("report.css").read_text(encoding="utf-8"))
    template = environment.get_template(f"{document.template}.html.jinja")
    stream.write(template.render(it=document, style=style, policy=POLICY, version=__version__))
