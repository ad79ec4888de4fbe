"""All pictures of a page as plain data; ``report.js`` draws them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from stabilitylens.findings import Finding
from stabilitylens.reports._curves import curves, evidence
from stabilitylens.reports._maps import maps
from stabilitylens.reports._windows import windows
from stabilitylens.reports._words import short_names
from stabilitylens.rules import RULES

if TYPE_CHECKING:
    from stabilitylens.report import Report

#: findings beyond this many have no picture of their own
PICTURED = 24


def figures(report: Report, leading: list[tuple[int, Finding]]) -> dict[str, Any]:
    """Curves, maps, a picture (or None) for each leading finding, and what was left out.

    Args:
        report: a post-mortem, or an audit, which has no pictures.
        leading: the findings that get a card, each with the index of its run.
    """
    runs = report.runs
    fired = [finding for finding in report.findings if finding.verdict == "fired"]
    needed = [need for f in fired if f.code in RULES for need in RULES[f.code].needs]
    drawn, left_out = maps(runs, needed)
    close, others = windows(report.subjects)
    return {
        "runs": short_names([run.path for run in runs]),
        "curves": [curve | {"id": f"curve-{i}"} for i, curve in enumerate(curves(report.subjects))],
        "maps": [each | {"id": f"map-{i}"} for i, each in enumerate(drawn)],
        "findings": [evidence(f, own, runs) if runs and i < PICTURED else None for i, (own, f) in enumerate(leading)],
        "left_out": left_out,
        "windows": [each | {"id": f"window-{each['run']}-{each['incident']}"} for each in close],
        "not_close": others,
    }


def embed(data: dict[str, Any]) -> Markup:
    """JSON that is safe inside a script element, whatever a log calls its series."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
