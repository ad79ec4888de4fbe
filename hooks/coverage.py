"""What was seen of what there is, and why the rest was not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
from jaxtyping import Float

from stabilitylens.anatomy import UNREAD, Anatomy
from stabilitylens.header import Coverage
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.reasons import NO_VALUE, Reasons, observed_taps, of_metrics, unread_attention
from stabilitylens.hooks.sample import site_name
from stabilitylens.hooks.subject import Subject
from stabilitylens.hooks.taps import OF_FUSED_NORMS, ForwardTaps
from stabilitylens.hooks.whole import WholeParameters, WholeSubject, WholeTaps
from stabilitylens.metrics import Metric

NOT_FUSED = "no normalisation layer that ran was taken by stabilitylens.fuse_norms(model) before the lens was attached"


def _asked_for(asked: Sequence[Metric], names: Set[str], forward: str | None) -> Iterator[tuple[str, str]]:
    for metric in asked:
        if metric.name not in names:
            yield metric.name, NOT_FUSED if OF_FUSED_NORMS & set(metric.needs) else forward or "nothing that it is read from was seen to run"


def coverage(
    subject: Subject | WholeSubject,
    taps: ForwardTaps | WholeTaps,
    parameters: ParameterTaps | WholeParameters,
    arrays: Mapping[str, Float[np.ndarray, "*where"]],
    left_out: Sequence[str] = (),
    asked: Sequence[Metric] = (),
) -> Coverage:
    """Coverage after a sampled step.

    Args:
        subject: what there is to see.
        taps: what has been seen of the forward.
        parameters: what has been seen of the parameters.
        arrays: the metrics that the step gave, by name.
        left_out: metrics that the user did not ask for.
        asked: those that are only recorded because the user asked for them.
    """
    seen = {site_name(site) for site in taps.layers}
    known = list(dict.fromkeys([*subject.blocks, *seen]))
    names = {name.partition("/")[0] for name in arrays}
    reasons = Reasons(subject, taps, parameters, observed_taps(names))
    missing = [(name, why) for name, why in of_metrics(reasons, names) if name not in left_out]
    if "value_norm" in names and all(np.isnan(values).all() for name, values in arrays.items() if name.startswith("value_norm/")):
        missing.append(("value_norm", NO_VALUE))
    missing += _asked_for(asked, names, reasons.forward)
    missing += [(name, "attach() was not asked for it by metrics=") for name in left_out]
    missing += [*subject.unreadable.items(), *taps.skipped.items()]
    if taps.ran and reasons.forward is None:
        missing += [(name, "never called through its __call__") for name in known if name not in seen and name not in taps.skipped]
    missing += [(name, "its state is not a float tensor of its shape") for name in sorted(parameters.skipped_state)]
    missing += [(name, "has had no gradient yet") for i, name in enumerate(parameters.names) if i not in parameters.with_gradient]
    fused = {name for name in taps.fused if not any(name == a or name.startswith(f"{a}.") for a, _ in taps.attention)}
    expected = len(taps.attention) + len(fused) + len(unread_attention(taps))
    return Coverage(
        parameters=(len(parameters.with_gradient), len({*parameters.names, *subject.unreadable})),
        layers=(len(seen), len(known)),
        attention=(len(taps.attention), expected),
        not_observed=tuple(missing),
    )


def unread(anatomy: Anatomy | None) -> str | None:
    """Why a model's anatomy is not known; None where it is."""
    if anatomy is None:
        return "it could not be read when the lens was attached"
    note = next((note for note in anatomy.notes if note.startswith(UNREAD)), None)
    if note is None:
        return None
    why = note.removeprefix(UNREAD).partition("; pass example_inputs")[0]
    return f"{why}: give the model a forward of one batch of inputs, or audit(model, example_inputs) what it has"
