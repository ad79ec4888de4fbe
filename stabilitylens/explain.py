"""The page of a rule, a metric, an incident detector, a suspect or a reader: its docstring with a heading and a line of facts."""

from __future__ import annotations

from difflib import get_close_matches
from inspect import cleandoc

from stabilitylens.errors import BadInput
from stabilitylens.incidents import DETECTORS, Detector
from stabilitylens.metrics import METRICS, Metric
from stabilitylens.readers import READERS, Reader
from stabilitylens.rules import RULES, Rule
from stabilitylens.rules._rule import in_words
from stabilitylens.suspects import SUSPECTS, Suspect


def explain(name: str) -> str:
    """The page of one thing, in Markdown.

    Args:
        name: a rule's code or name, a metric, an incident detector, a suspect or a reader; case, and hyphens for
            underscores, do not matter.

    Raises:
        stabilitylens.errors.BadInput: nothing has that name; the sentence offers the nearest ones.
    """
    pages = _pages()
    page = pages.get(_key(name))
    if page is None:
        near = get_close_matches(_key(name), pages, n=3, cutoff=0.5)
        raise BadInput(
            f"there is no rule, metric, incident, suspect or reader called {name!r}; "
            + (f"did you mean {' or '.join(map(_shown, near))}?" if near else "try SL201, resid_rms or spike")
        )
    return page


def _key(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _shown(key: str) -> str:
    rules = {_key(alias): alias for member in RULES for alias in (member.code, member.name)}
    return rules.get(key, key)


def _pages() -> dict[str, str]:
    """Every page by its key; where several things share a name, all of them."""
    pages: dict[str, str] = {}
    for rule in RULES:
        pages[_key(rule.code)] = pages[_key(rule.name)] = rule_page(rule)
    named = [(m.name, metric_page(m)) for m in METRICS] + [(d.name, detector_page(d)) for d in DETECTORS]
    named += [(s.name, suspect_page(s)) for s in SUSPECTS] + [(r.name, reader_page(r)) for r in READERS]
    for name, page in named:
        pages[_key(name)] = "\n".join(filter(None, (pages.get(_key(name)), page)))
    return pages


def rule_page(rule: Rule) -> str:
    """Heading, what it needs, how large the models of its evidence are and since when, and its docstring."""
    facts = ["static" if rule.static else "dynamic"]
    facts += ["needs " + ", ".join(f"`{need}`" for need in rule.needs)] if rule.needs else []
    facts += ["also judged before training (`--init`)"] if rule.initial else []
    facts += [f"evidence up to {in_words(rule.evidence_scale)} parameters"] if rule.evidence_scale is not None else []
    return f"# {rule.code} {rule.name}\n\n*{' · '.join([*facts, f'since {rule.since}'])}*\n\n{rule.page}\n"


def metric_page(metric: Metric) -> str:
    """Heading, unit, axes, where it comes from and which end is the worrying one, and its docstring."""
    facts = [f"unit {metric.unit}", f"axes {axes_in_words(metric)}", source_in_words(metric)]
    facts += ["low values are the worrying ones"] if metric.worse == "low" else []
    return f"# {metric.name}\n\n*{' · '.join(facts)}*\n\n{metric.page}\n"


def detector_page(detector: Detector) -> str:
    """Heading and docstring."""
    return f"# {detector.name}\n\n*incident*\n\n{cleandoc(detector.page)}\n"


def suspect_page(suspect: Suspect) -> str:
    """Heading and docstring."""
    return f"# {suspect.name}\n\n*suspect*\n\n{suspect.page}\n"


def reader_page(reader: Reader) -> str:
    """Heading and docstring."""
    return f"# {reader.name}\n\n*reader*\n\n{reader.page}\n"


def axes_in_words(metric: Metric) -> str:
    """E.g. ``none (one number), layer, group``."""
    return ", ".join(" × ".join(axes.split()) or "none (one number)" for axes in metric.axes)


def source_in_words(metric: Metric) -> str:
    """The taps it is computed from, or that it is kept at every step."""
    return "kept at every step" if metric.every_step else f"from {', '.join(metric.needs)}"
