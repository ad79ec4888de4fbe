"""The header for people, as TensorBoard's text tab shows it: findings, anatomy, recipe, coverage, metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stabilitylens.header import Header

_MARKS = {"error": "▲", "warning": "◆", "info": "●"}


def about(header: Header) -> str:
    """Markdown; whatever a model or a recipe calls itself is shown as it is."""
    parts = [
        "Layer by step, live, with the report of the run: the [Stability tab](#stabilitylens).",
        *_section("Findings before training", _findings(header)),
        *_section("Anatomy", _anatomy(header)),
        *_section("Recipe and coverage", ["| | |", "|---|---|", *(_row(*fact) for fact in _facts(header))]),
        *_section("Metrics", ["| metric | unit | definition |", "|---|---|---|", *_metrics(header)]),
    ]
    return "\n".join(parts)


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"### {title}", "", *lines] if lines else []


def _findings(header: Header) -> list[str]:
    """Of the rules that need no run: architecture and recipe."""
    if header.anatomy is None and header.recipe is None:
        return []
    # the rules are looked for only where there is something to judge
    from stabilitylens.rules import Evidence, judge

    found = judge(Evidence("", header.anatomy, header.recipe), static=True)
    fired = [f for f in found if f.verdict == "fired"]
    lines = [f"- {_MARKS[f.severity or 'info']} {f.severity} {f.code} {f.name}: {_escaped(f.message)}" for f in fired]
    counts = {verdict: sum(f.verdict == verdict for f in found) for verdict in ("clear", "not_evaluated")}
    return [*lines, f"- {counts['clear']} rules clear, {counts['not_evaluated']} not evaluated"]


def _anatomy(header: Header) -> list[str]:
    if header.anatomy is None:
        return []
    from stabilitylens.reports.anatomy_text import draw

    # indented by four, a block of code; no line of it can end that
    return [f"    {line}" for line in draw(header.anatomy).splitlines()]


def _facts(header: Header) -> Iterable[tuple[str, object]]:
    recipe = header.recipe.to_dict() if header.recipe else {}
    facts: dict[str, object] = {"observed": header.coverage, **header.sampling, **recipe, **header.versions}
    if header.anatomy:
        facts["norm placement"], facts["QK-Norm"] = header.anatomy.norm_placement, header.anatomy.qk_norm
    return ((name, value) for name, value in facts.items() if value is not None and value != ())


def _metrics(header: Header) -> list[str]:
    return [_row(meta.name, meta.unit, meta.definition) for meta in header.metrics.values()]


def _row(*cells: object) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: object) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>~&])", r"\\\1", " ".join(str(text).splitlines()))
