"""counterfactuals: try the suspected cures on a dumped incident, one at a time, from the snapshot before it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from os import PathLike
from statistics import fmean, median
from typing import Any

from torch import nn

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.everybody import Recorded, gathered, opened
from stabilitylens.hooks.blackbox.evidence import Evidence
from stabilitylens.hooks.blackbox.rerun import Rerun, StepFunction, check
from stabilitylens.hooks.counterfactuals._limits import Limits, before, limits_of
from stabilitylens.hooks.counterfactuals._member import COUNTERFACTUALS, Counterfactual, NotApplicable
from stabilitylens.hooks.counterfactuals._table import Row, Table, Verdict
from stabilitylens.hooks.counterfactuals._trial import Course, Plan, Trial


def counterfactuals(
    incident: str | PathLike[str], model: nn.Module, optimizer: Any, step_fn: StepFunction | None = None, *, scheduler: Any = None, scaler: Any = None,
    names: Iterable[str] | None = None, after: int = 8, later: Iterable[Sequence[Any]] | None = None,
) -> Table:  # fmt: skip
    """Run a dumped incident again with one thing changed at a time, and say which changes avert it, and at what price.

    Every run begins at the snapshot before the incident and does the steps up to the incident's, and some more. The first
    changes nothing: it has to show the incident again, or nothing is tried. A change averts it if from the snapshot on no loss
    exceeds what the steps before the incident allow, and loss and weights stay finite. The price is the mean loss of the
    steps after, on the same batches for all. An incident that comes by chance, as the spikes of the gradient do that attention
    with very large logits makes, is averted for a while by almost any change; a larger ``after`` tells what keeps it away.

    The table is also written beside the incident's folder, where :func:`stabilitylens.postmortem` finds it. The model and the
    optimizer are left in the state just before the incident's step.

    Args:
        incident, model, optimizer, step_fn, scheduler, scaler: as for :func:`stabilitylens.replay`.
        names: of the counterfactuals to try; all of them where left out.
        after: so many steps follow the incident, with its learning rates.
        later: their micro-batches, a list for each step; where left out those of kept steps before the incident are used
            once more, oldest first, so that their loss says which change is better, not how well the model does.

    Returns:
        The table; ``print`` it.

    Raises:
        BadInput: as for :func:`stabilitylens.replay`, or a name is unknown, or ``after`` or ``later`` are no such thing.
    """
    check(model, optimizer, step_fn)
    assert step_fn is not None
    members = _members(names)
    evidence = opened(incident)
    recorded = Recorded(evidence)
    rerun = Rerun(evidence, model, optimizer, step_fn, scheduler, scaler)
    plan, on = _plan(evidence, rerun.snapshot.step, after, later)
    at_last: list[Any] = []
    try:
        baseline = Trial(rerun, plan, None).run(lambda step: at_last.append(rerun.state(step)) if step == plan.last else None)
        _check_told(recorded, baseline)
        limits = limits_of(recorded, baseline)
        shown = limits.bad(baseline, plan.last)
        rows = tuple(_row(rerun, plan, baseline, member, limits) for member in members) if shown else ()
    finally:
        rerun.restore(at_last[0] if at_last else None)
    table = _table(evidence, recorded, plan, on, limits, baseline, shown, rows)
    return table if evidence.rank else _saved(table)


def _members(names: Iterable[str] | None) -> list[Counterfactual]:
    if names is None:
        return list(COUNTERFACTUALS)
    wanted = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in wanted if name not in COUNTERFACTUALS]
    if unknown:
        raise BadInput(f"counterfactuals(names=…) names {unknown[0]!r}, which is none; they are {', '.join(COUNTERFACTUALS.names())}")
    return [COUNTERFACTUALS[name] for name in wanted]


def _plan(evidence: Evidence, first: int, after: int, later: Iterable[Sequence[Any]] | None) -> tuple[Plan, str]:
    """The steps to run, and in words which batches follow the incident."""
    if type(after) is not int or after < 0:
        raise BadInput(f"counterfactuals(after={after!r}) is no number of steps; pass a whole number, 0 or more")
    usable = gathered({step for step in evidence.steps if step < evidence.step and _usable(evidence, step)})
    lent = sorted(set.intersection(*usable))
    if later is not None:
        given = list(later)[:after]
        if any(not isinstance(batches, (list, tuple)) or not batches for batches in given):
            raise BadInput("counterfactuals(later=…) needs a list of micro-batches for each step, as step_fn is given them")
        lender = lent or [evidence.step]
        return Plan(first, evidence.step, tuple((lender[i % len(lender)], batches) for i, batches in enumerate(given))), "the batches of later="
    again = tuple((lent[i % len(lent)], None) for i in range(after if lent else 0))
    which = sorted({step for step, _ in again})
    return Plan(first, evidence.step, again), f"the batches of steps {which[0]} to {which[-1]} once more" if which else "no batches"


def _usable(evidence: Evidence, step: int) -> bool:
    """Whether a kept step can be run again after the incident: all of its batches are there, and its update was made."""
    try:
        evidence.batches(step)
    except BadInput:
        return False
    return not evidence.scalar(step, "skipped")


def _check_told(recorded: Recorded, baseline: Course) -> None:
    """Say it where step_fn tells no losses."""
    known = [recorded.scalar(step, "loss") for step in recorded.steps]
    if all(map(math.isnan, baseline.losses.values())) and any(loss is not None and not math.isnan(loss) for loss in known):
        raise BadInput("step_fn returned no loss, which decides whether a change averts the incident; let it return the one that it computes")


def _row(rerun: Rerun, plan: Plan, baseline: Course, member: Counterfactual, limits: Limits) -> Row:
    """One counterfactual, whatever becomes of it."""
    trial = Trial(rerun, plan, baseline, member)
    try:
        course = trial.run()
    except NotApplicable as why:
        return Row(member.name, member.suspect, member.weight, "not applicable", str(why))
    except Exception as error:  # a change that the model can't stand is no reason to lose the others
        return Row(member.name, member.suspect, member.weight, "failed", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    against = limits.against(course, plan.last)
    verdict: Verdict = "does not avert" if against else "averts"
    return Row(
        member.name, trial.suspect, member.weight, verdict, against, course.losses, course.norms, tuple(sorted(trial.drop)), _loss_after(course, plan),
    )  # fmt: skip


def _loss_after(course: Course, plan: Plan) -> float:
    after = [loss for step, loss in course.losses.items() if step > plan.last]
    return fmean(after) if after else math.nan


def _table(
    evidence: Evidence, recorded: Recorded, plan: Plan, on: str, limits: Limits, baseline: Course, shown: bool, rows: tuple[Row, ...]
) -> Table:
    known = before(recorded, "loss")
    base = Row("baseline", None, 0.0, "does not avert", limits.against(baseline, plan.last), baseline.losses, baseline.norms, (), _loss_after(baseline, plan))
    return Table(
        str(evidence.folder), plan.last, evidence.manifest.kinds, plan.first, len(plan.later), on, limits.loss, limits.level, limits.words, limits.norm,
        median(known) if known else math.nan, shown, base, rows,
    )  # fmt: skip


def _saved(table: Table) -> Table:
    """The table, written beside the incident; where that can't be, the table says so."""
    try:
        table.save()
    except OSError as error:
        note = f"the table could not be written beside {table.folder} ({error.strerror}), so a post-mortem will not know of it"
        object.__setattr__(table, "notes", (*table.notes, note))
    return table
