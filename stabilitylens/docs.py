"""``python -m stabilitylens.docs FOLDER [--check]``: docs/rules.md, metrics.md, formats.md and more, from the docstrings."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from stabilitylens.explain import axes_in_words, metric_page, rule_page, source_in_words, suspect_page
from stabilitylens.metrics import METRICS
from stabilitylens.readers import READERS
from stabilitylens.recipe_files._dialect import DIALECTS
from stabilitylens.recipe_files._page import dialect_page
from stabilitylens.rules import RULES
from stabilitylens.suspects import SUSPECTS

NOTE = "<!-- Generated from the docstrings by `make docs`; edit those. -->"


def rules_md() -> str:
    """The pages of all rules of this package, after a table of them."""
    ours = [member for member in RULES if _is_ours(member.check)]
    rows = [f"| [{r.code}](#{_anchor(f'{r.code} {r.name}')}) | {r.name} | {r.summary} |" for r in ours]
    table = ["| code | name | clear means |", "|---|---|---|", *rows]
    intro = (
        "A rule fires, says that it is clear, or says that it was not evaluated and what it lacked. "
        "`stabilitylens explain CODE` prints one of these pages."
    )
    return _document("Rules", intro, table, [rule_page(member) for member in ours])


def metrics_md() -> str:
    """The pages of all metrics of this package, after a table of them."""
    ours = [member for member in METRICS if _is_ours(member.function)]
    rows = [f"| [{m.name}](#{_anchor(m.name)}) | {m.unit} | {axes_in_words(m)} | {source_in_words(m)} |" for m in ours]
    table = ["| metric | unit | axes | taken |", "|---|---|---|---|", *rows]
    intro = (
        "What was not observed is NaN, never zero. Unit 1 means a plain number, nat the natural logarithm's unit. "
        "`stabilitylens explain NAME` prints one of these pages."
    )
    return _document("Metrics", intro, table, [metric_page(member) for member in ours])


def formats_md() -> str:
    """The pages of all readers of this package, after a table of them."""
    ours = [member for member in READERS if _is_ours(member.read)]
    cells = [(f"[{r.name}](#{_anchor(r.name)})", r.summary.replace("|", r"\|")) for r in ours]
    rows = [f"| {name} | {summary} |" for name, summary in cells]
    table = ["| reader | reads |", "|---|---|", *rows]
    intro = (
        "A reader knows a log by its content, whatever its name; of several the surest reads. Files may be compressed (.gz, .bz2, "
        ".xz, and .zst with the package zstandard), come from a pipe (`-`), or lie in a folder of many runs. The loss is chosen by "
        "name and behaviour and told as `loss_key`; `--loss KEY` chooses another. `run.notes` says what was skipped or mended. "
        "Third parties add a reader through an entry point in the group `stabilitylens.readers`, which names a module like one of ours."
    )
    return _document("Formats", intro, table, [f"# {member.name}\n\n{member.page}\n" for member in ours])


def recipes_md() -> str:
    """The dialects of recipe files."""
    intro = (
        "`stabilitylens audit MODEL --recipe FILE` reads YAML, JSON and TOML. Whose file it is, is told by its keys. Keys that "
        "are not listed are not used, and the report names them. A value such as `auto` is not known."
    )
    return _document("Recipe files", intro, [], [dialect_page(member) for member in DIALECTS])


def suspects_md() -> str:
    """The pages of all suspects of this package, after a table of them."""
    ours = [member for member in SUSPECTS if _is_ours(member.weigh)]
    rows = [f"| [{s.name}](#{_anchor(s.name)}) | {s.summary} |" for s in ours]
    intro = (
        "What may have caused an incident. Each suspect weighs what speaks for it and against it as log odds on a prior; weights and "
        "priors are heuristic, since no public collection of incidents with known causes is large enough to fit them. Scores need not "
        "add up to 1. Where the black box has dumped the incident and `stabilitylens.counterfactuals` was run on it, what averts it "
        "and what does not moves its suspect's log odds by the weight that [its page](counterfactuals.md) states: of several tests of "
        "a suspect the strongest that averts it counts, and where none does the strongest counts against it. Where more than half of "
        "all changes avert it, none says more than 0.5. `stabilitylens explain NAME` prints one of these pages."
    )
    return _document("Suspects", intro, ["| suspect | what it is |", "|---|---|", *rows], [suspect_page(member) for member in ours])


def counterfactuals_md() -> str:
    """The pages of all counterfactuals of this package, after a table of them; the only page that needs torch."""
    from stabilitylens.hooks.counterfactuals import COUNTERFACTUALS

    ours = [member for member in COUNTERFACTUALS if _is_ours(member.act)]
    cells = [(f"[{c.name}](#{_anchor(c.name)})", f"[{c.suspect}](suspects.md#{c.suspect})" if c.suspect else "–", f"{c.weight:g}") for c in ours]
    intro = (
        "Suspected cures that `stabilitylens.counterfactuals(incident, model, optimizer, step_fn)` tries on a dumped incident, each from "
        "the snapshot before it. The table says which avert it and at what price in loss. A verdict is evidence for its suspect or "
        "against it, by the stated weight in nats of log odds (*heuristic*). One is added as a file in `hooks/counterfactuals/`, or "
        "through an entry point in the group `stabilitylens.hooks.counterfactuals`."
    )
    table = ["| counterfactual | tests the suspect | weight |", "|---|---|---|", *(f"| {' | '.join(cell)} |" for cell in cells)]
    return _document("Counterfactuals", intro, table, [f"# {member.name}\n\n{member.page}\n" for member in ours])


def _is_ours(function: object) -> bool:
    return getattr(function, "__module__", "").startswith("stabilitylens.")


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _document(title: str, intro: str, table: list[str], pages: list[str]) -> str:
    """One page of pages: each one's headings go down by a level."""
    lower = [re.sub(r"^(#+ )", r"#\1", page, flags=re.M) for page in pages]
    return "\n".join([f"# {title}", "", NOTE, "", intro, "", *table, "", *lower])


FILES = {
    "rules.md": rules_md, "metrics.md": metrics_md, "formats.md": formats_md, "recipes.md": recipes_md, "suspects.md": suspects_md,
    "counterfactuals.md": counterfactuals_md,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or check them: 1 where one is missing or stale."""
    parser = argparse.ArgumentParser(prog="python -m stabilitylens.docs", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files are, as docs")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    options = parser.parse_args(arguments)
    stale = 0
    for name, generate in FILES.items():
        path, text = options.folder / name, generate()
        current = path.read_text(encoding="utf-8") if path.is_file() else None
        if options.check and current != text:
            print(f"{path} is not what the docstrings say; run: make docs", file=sys.stderr)
            stale = 1
        elif not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
