"""Audit, train, explain: the whole way through, with what was found printed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import stabilitylens as sl
from stabilitylens.demo.model import Decoder, Shape
from stabilitylens.demo.training import Plan, train
from stabilitylens.findings import Verdict
from stabilitylens.report import Report, Subject

RUNS = {"without_qk_norm": Shape(), "with_qk_norm": Shape(qk_norm=True)}
#: only audited: deep Post-LN is trained with warm-up and care, or not at all
POST_LN = Shape(depth=18, placement="post")
SEVERITY_COLOURS = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def _audit(console: Console, plan: Plan) -> None:
    console.rule("1. Audit: what the architectures say before training", align="left")
    recipe = {"lr": plan.lr, "beta2": plan.beta2}
    shapes = {**{name.replace("_", " "): shape for name, shape in RUNS.items()}, "18 layers, Post-LN": POST_LN}
    for name, shape in shapes.items():
        report = sl.audit(Decoder(shape), recipe=recipe, name=name)
        anatomy = report.anatomy
        assert anatomy is not None
        console.print(
            f"[bold]{name}[/]: {anatomy.n_layers} layers, {anatomy.norm_placement}-norm ({anatomy.norm_kind}), "
            f"QK-Norm: {anatomy.qk_norm}, {anatomy.n_parameters:,} parameters"
        )
        _verdicts(console, report.subjects[0])


def _verdicts(console: Console, subject: Subject) -> None:
    """Every rule's verdict: what fired with its worst place, then what is clear, then what was not evaluated."""
    for findings in subject.fired_by_rule():
        first, more = findings[0], len(findings) - 1
        colour = SEVERITY_COLOURS[first.severity or "info"]
        rest = f" (and in {more} more layers)" if more else ""
        console.print(f"  [{colour}]fired, {first.severity}[/] {first.code} {first.name}: {escape(first.message)}{rest}")
    verdicts: tuple[tuple[Verdict, str], ...] = (("clear", "green"), ("not_evaluated", "dim"))
    for verdict, colour in verdicts:
        codes = [finding.code for finding in subject.by_verdict(verdict)]
        if codes:
            console.print(f"  [{colour}]{verdict.replace('_', ' ')}[/] {len(codes)} rules: {', '.join(codes)}")


def _train(console: Console, out: Path, plan: Plan) -> None:
    console.rule("2. Train: the same recipe twice, under observation", align="left")
    console.print(
        f"The standard library's source as bytes, AdamW, learning rate {plan.lr}, {plan.warmup} steps of warm-up, "
        f"{plan.steps} steps."
    )
    # a model this small is no faster on several threads, and much slower where others use the cores
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        tasks = {name: bars.add_task(name.replace("_", " "), total=plan.steps, loss=np.nan) for name in RUNS}
        for name, shape in RUNS.items():
            if not console.is_terminal:
                console.print(f"training {name.replace('_', ' ')} …")
            shutil.rmtree(out / "runs" / name, ignore_errors=True)
            train(shape, plan, out / "runs" / name, lambda loss, t=tasks[name]: bars.update(t, advance=1, loss=loss))  # type: ignore[misc]
    torch.set_num_threads(threads)


def _compare(report: Report) -> Table:
    """The two runs side by side: what everybody looks at, then what tells them apart."""
    table = Table(title="last 10 % of the steps", title_style="dim", title_justify="left")
    table.add_column("")
    rows = [
        ("loss, mean (nat)", "loss", np.mean), ("gradient norm, largest", "grad_norm", np.max),
        ("attention logit, largest", "max_attn_logit", np.max), ("entropy ratio, smallest layer", "attn_entropy_ratio", None),
    ]  # fmt: skip
    for subject in report.subjects:
        table.add_column(Path(subject.name).name.replace("_", " "), justify="right")
    for label, name, reduce in rows:
        table.add_row(label, *(f"{_late(subject, name, reduce):,.4g}" for subject in report.subjects))
    return table


def _rules(report: Report) -> Table:
    """The verdicts on both runs of every rule that fired on either."""
    table = Table(title="rules that fired on either run", title_style="dim", title_justify="left")
    table.add_column("rule")
    fired: dict[str, str] = {f.code: f.name for f in report.findings if f.verdict == "fired"}
    for subject in report.subjects:
        table.add_column(Path(subject.name).name.replace("_", " "))
    for code, name in sorted(fired.items()):
        table.add_row(f"{code} {name}", *(_verdict(subject, code) for subject in report.subjects))
    return table


def _verdict(subject: Subject, code: str) -> str:
    worst = next(f for f in subject.findings if f.code == code)
    if worst.verdict == "fired":
        return f"[{SEVERITY_COLOURS[worst.severity or 'info']}]fired, {worst.severity}[/]"
    return "[green]clear[/]" if worst.verdict == "clear" else "not evaluated"


def _late(subject: Subject, name: str, reduce: object) -> float:
    assert subject.run is not None
    series = subject.run[name]
    late = series.values[series.steps > 0.9 * series.steps[-1]]
    if reduce is None:  # the mean over heads and steps of each layer, then the smallest layer
        return float(np.nanmin(np.nanmean(late, axis=(0, 2))))
    return float(reduce(late))  # type: ignore[operator]


def demonstrate(out: Path, plan: Plan | None = None) -> Report:
    """Run the demonstration and leave ``out/report.html`` and two recordings in ``out/runs``.

    Args:
        out: a folder, made where it is missing; earlier recordings of the demonstration in it are replaced.
        plan: the recipe; that of the documentation where None.

    Returns:
        The post-mortem of both runs.
    """
    console = Console(highlight=False)
    plan = plan or Plan()
    _audit(console, plan)
    _train(console, out, plan)
    console.rule("3. Explain: the post-mortem of both recordings", align="left")
    report = sl.postmortem(*(out / "runs" / name for name in RUNS))
    console.print(_compare(report), _rules(report), sep="\n")
    for subject in report.subjects:
        console.print(f"\n[bold]{Path(subject.name).name.replace('_', ' ')}[/]: {escape(subject.headline)}")
        _verdicts(console, subject)
        console.print(f"  [dim]observed: {escape(str(subject.header.coverage))}[/]")
    page = out / "report.html"
    page.write_text(report.to_html(), encoding="utf-8")
    console.rule("Look", align="left")
    console.print(f"pictures       {page}", soft_wrap=True)
    console.print(f"TensorBoard    tensorboard --logdir {out / 'runs'}", soft_wrap=True)
    console.print(f"in full        stabilitylens postmortem {out / 'runs' / 'without_qk_norm'}", soft_wrap=True)
    console.print("one rule       stabilitylens explain SL201")
    return report
