"""replay: run a dumped incident again, and say where it began."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from typing import Any

from torch import nn

from stabilitylens.hooks.blackbox.alarm import ATTENTION_LOGITS
from stabilitylens.hooks.blackbox.everybody import gathered, opened
from stabilitylens.hooks.blackbox.evidence import Evidence
from stabilitylens.hooks.blackbox.first_bad import bad_weights, nonfinite, outlying, words
from stabilitylens.hooks.blackbox.measuring import Measuring
from stabilitylens.hooks.blackbox.probe import Call, Probe
from stabilitylens.hooks.blackbox.rerun import Rerun, StepFunction, check
from stabilitylens.hooks.blackbox.result import FirstBad, Replay
from stabilitylens.hooks.blackbox.samples import samples as row_samples
from stabilitylens.hooks.blackbox.setting import differences, setting_of
from stabilitylens.hooks.blackbox.sharp_attention import SharpAttention
from stabilitylens.hooks.blackbox.swap import cause_of

#: so many steps before the incident tell what is usual for a module
USUAL = 8


def replay(
    incident: str | PathLike[str], model: nn.Module, optimizer: Any, step_fn: StepFunction | None = None, scheduler: Any = None, scaler: Any = None,
    *, samples: bool = True,
) -> Replay:  # fmt: skip
    """Run a dumped incident again, to the bit on the same hardware and kernels, and name the first module that goes wrong.

    What was found is also written beside the incident's folder, where :func:`stabilitylens.postmortem` finds it. The model and
    the optimizer are left in the state just before the incident's step.

    Args:
        incident: its folder, ``…/stabilitylens/incidents/step_…``, or a run's folder, whose newest incident is taken.
        model: built as it was; its weights do not matter. It may be wrapped otherwise than in training.
        optimizer: built as it was, on this model's parameters; or the list of several.
        step_fn: ``step_fn(model, optimizer, batches)`` does one whole optimizer step, as the loop did: for each micro-batch in the
            list ``batches`` the forward and the backward, then clipping, ``optimizer.step()``, ``zero_grad()``, and the steps of
            scheduler and scaler where there are some. It returns the loss that the loop gave to ``lens.step()``, or the list of
            those that it gave to ``lens.micro_step()``. A micro-batch is what the loop gave to ``lens.batch()``, with its tensors
            on the host; where it gave none, what the model was called with: the only argument, the dictionary of the
            keywords, the tuple of several arguments, or the pair of arguments and keywords.
        scheduler: the one that ``step_fn`` uses, or a list; learning rates are put back at each step even without it.
        scaler: the gradient scaler that ``step_fn`` uses.
        samples: also run each row of the step's batch by itself, to tell which of them are unlike the others. Where several
            processes train together each does so with its own rows; gradients of sharded parameters are not looked at then.

    Returns:
        What was found; ``print`` it.

    Raises:
        BadInput: the folder is damaged or foreign, no snapshot or not every batch was kept, the model or optimizer does not
            fit, or ``step_fn`` is missing.
    """
    check(model, optimizer, step_fn)
    assert step_fn is not None
    evidence = opened(incident)
    rerun = Rerun(evidence, model, optimizer, step_fn, scheduler, scaler)
    losses, first, before = _watched(rerun)
    told = {step: evidence.scalar(step, "loss") for step in losses}
    first = _first_of(gathered((first, losses.get(evidence.step, math.nan))))
    difference = _agreed(gathered(_difference(evidence, model, losses, told)))
    rerun.restore(before)
    rows = row_samples(rerun, Measuring(rerun, before)) if samples else None
    cause = cause_of(rerun, before)
    rerun.restore(before)
    found = Replay(
        str(evidence.folder), evidence.step, evidence.manifest.kinds, rerun.snapshot.step, losses,
        {step: math.nan if loss is None else loss for step, loss in told.items()}, not difference, difference, first, rows, cause,
    )  # fmt: skip
    object.__setattr__(found, "text", text_of(found))
    return found if evidence.rank else _saved(found)


def _saved(found: Replay) -> Replay:
    """The replay, written beside the incident; where that can't be, its text says so."""
    try:
        found.save()
    except OSError as error:
        note = f"it could not be written beside {found.folder} ({error.strerror}), so a post-mortem will not know of it"
        object.__setattr__(found, "text", f"{found.text}\n{note}")
    return found


def _watched(rerun: Rerun) -> tuple[dict[int, float], FirstBad | None, Any]:
    """Run up to the incident's step, watching the last steps; losses, where it began, the state before the incident's step."""
    losses: dict[int, float] = {}
    earlier: list[list[Call]] = []
    first, before, last = None, None, rerun.evidence.step
    for step in range(rerun.restore(), last + 1):
        before = rerun.state(step) if step == last else None
        if step < last - USUAL:
            losses[step] = rerun.run(step)
            continue
        first = first or bad_weights(step, rerun.model)
        sharp = SharpAttention(rerun.model) if step == last and ATTENTION_LOGITS in rerun.evidence.manifest.kinds else None
        with Probe(rerun.model) as probe, sharp or nullcontext():
            losses[step] = rerun.run(step)
        first = first or nonfinite(step, probe.calls) or (sharp.first_bad(step) if sharp else None)
        if first is None and step == last:
            first = outlying(step, probe.calls, earlier)
        earlier.append(probe.calls)
    return losses, first, before


def _first_of(found: Sequence[tuple[FirstBad | None, float]]) -> FirstBad | None:
    """Of what each process found, with its loss at the incident's step, where it began: what reaches the others by the gradients comes later."""
    first: list[tuple[tuple[bool, int, bool, bool], int, FirstBad]] = [
        ((bad.what == "outlying", bad.step, bad.direction == "backward", math.isfinite(loss)), rank, bad)
        for rank, (bad, loss) in enumerate(found) if bad is not None
    ]
    if not first:
        return None
    _, rank, bad = min(first, key=lambda one: one[:2])
    return replace(bad, rank=rank, sentence=f"on rank {rank}: {bad.sentence}") if len(found) > 1 else bad


def _same(loss: float, told: float) -> bool:
    """Equal to the bit; a loss that is NaN has to be NaN again."""
    return loss == told or (math.isnan(loss) and math.isnan(told))


def _difference(evidence: Evidence, model: nn.Module, losses: dict[int, float], told: Mapping[int, float | None]) -> str:
    """How the losses differ from those that were recorded, and why; empty where they are equal."""
    compared = [(step, loss) for step, loss in told.items() if loss is not None]
    if not compared:
        return "no loss of these steps was recorded, so nothing tells whether they came out the same"
    unequal = [(step, loss) for step, loss in compared if not _same(losses[step], loss)]
    if not unequal:
        return ""
    step, loss = unequal[0]
    where = f"from step {step} on the loss is {losses[step]!r} where {loss!r} was recorded"
    others = differences(evidence.manifest.setting, setting_of(model))
    why = "; ".join(others) if others else "no version, device or flag differs, so the step is not done as it was, or its kernels vary"
    return f"{where}: {why}"


def _agreed(differences: Sequence[str]) -> str:
    """The first difference that a process found."""
    return next((f"on rank {rank} {text}" if len(differences) > 1 else text for rank, text in enumerate(differences) if text), "")


def text_of(found: Replay) -> str:
    """All of it for a person."""
    steps = f"steps {found.snapshot_step} to {found.step}" if found.snapshot_step < found.step else f"step {found.step}"
    same = "every recorded loss is equal to the bit" if found.exact else found.difference
    lines = [f"{steps} were run again: {same}"]
    if found.first_bad is None:
        lines.append("no module makes anything that is not finite, or far from what it did in the steps before")
    else:
        lines.append(found.first_bad.sentence)
        for frame in found.first_bad.before:
            side = frame.output if frame.direction == "forward" else frame.input
            lines.append(f"  before: {frame.direction} {frame.module or 'the model'} {words(side) if side else 'no tensor'}")
    lines += [part.sentence for part in (found.cause, found.samples) if part is not None]
    return "\n".join(lines)
