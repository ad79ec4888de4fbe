"""What was seen of what there is, and why the rest was not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from stabilitylens.anatomy import UNREAD, Anatomy
from stabilitylens.header import Coverage
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.sample import site_name
from stabilitylens.hooks.subject import COMPILED_SENTENCE, Subject
from stabilitylens.hooks.taps import OF_FUSED_NORMS, ForwardTaps
from stabilitylens.hooks.whole import WholeParameters, WholeSubject, WholeTaps
from stabilitylens.metrics import Metric

COMPILED_AFTER = "the forward runs compiled, where only blocks and scaled dot-product attention are observed"
COMPILED_CACHE = "the forward runs compiled with a key-value cache in it: set use_cache=False for training"
NO_GRADIENT = "no parameter had a gradient when the optimizer stepped"
NOT_FUSED = "no normalisation layer that ran was taken by stabilitylens.fuse_norms(model) before the lens was attached"
NO_FORWARD = (
    "no forward of the model was seen: call the model itself, model(…), with gradients enabled, or the parts of one that "
    "has no forward inside `with lens.forward():`"
)


def _forward_reason(subject: Subject | WholeSubject, taps: ForwardTaps | WholeTaps) -> str | None:
    if taps.compiled:
        return COMPILED_AFTER
    if subject.compiled:
        return COMPILED_SENTENCE
    return None if taps.ran else NO_FORWARD


def _reasons(
    subject: Subject | WholeSubject, taps: ForwardTaps | WholeTaps, parameters: ParameterTaps | WholeParameters, arrays: Mapping[str, Float[np.ndarray, "*where"]]
) -> Iterator[tuple[str, str]]:
    names = {name.partition("/")[0] for name in arrays}
    forward = _forward_reason(subject, taps)
    unread = next(iter(subject.unreadable.values()), "") if not parameters.names else ""
    if subject.apart or unread:
        why = unread or f"the parameters are sharded over processes, and {subject.apart}"
        yield from ((name, why) for name in ("grad_norm", "param_norm", "update_ratio", "adam_rms"))
    elif "grad_norm" not in names:
        yield "grad_norm", NO_GRADIENT if not parameters.with_gradient else "lens.grads_ready() was not called before the optimizer's step, so gradients may be clipped"
    if not subject.blocks:
        yield "resid_rms", "no repeated blocks were found in the model"
    elif "resid_rms" not in names:
        yield "resid_rms", forward or "no block ran through its __call__"
    elif "resid_grad_norm" not in names:
        yield "resid_grad_norm", COMPILED_CACHE if taps.compiled else "no gradient reached a block's output"
    if "max_attn_logit" not in names:
        why = forward or _fused_reason(taps) or "no attention call was seen: the model has none, or hides it in a kernel"
        yield from ((name, why) for name in ("max_attn_logit", "attn_entropy", "attn_entropy_ratio", "query_norm"))
    if "max_attn_logit" in names and forward:
        yield from ((name, forward) for name in ("query_proj_norm", "key_proj_norm") if name not in names)
    if "norm_gain" not in names and "dyt_alpha" not in names:
        yield "norm_gain", forward or "no normalisation layer with a gain was seen to run"
    if "log_z" not in names:
        yield "log_z", forward or "no output layer with the shape of the vocabulary was seen to run"
    if "branch_ratio" not in names:
        yield "branch_ratio", forward or "no addition to the residual stream was seen inside a block"
    if subject.apart or unread:
        return
    if "update_ratio" not in names:
        yield "update_ratio", "the optimizer took no step on the model's parameters"
    if "adam_rms" not in names:
        yield "adam_rms", NO_GRADIENT if not parameters.with_gradient else "the optimizer keeps no second moment of its parameters' shape"


def _fused_reason(taps: ForwardTaps | WholeTaps) -> str | None:
    return f"{', '.join(sorted(taps.fused))} runs as torch's fused encoder" if taps.fused else None


def _asked_for(asked: Sequence[Metric], arrays: Mapping[str, Float[np.ndarray, "*where"]], forward: str | None) -> Iterator[tuple[str, str]]:
    names = {name.partition("/")[0] for name in arrays}
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
    missing = [(name, why) for name, why in _reasons(subject, taps, parameters, arrays) if name not in left_out]
    missing += _asked_for(asked, arrays, _forward_reason(subject, taps))
    missing += [(name, "attach() was not asked for it by metrics=") for name in left_out]
    missing += [*subject.unreadable.items(), *taps.skipped.items()]
    if seen:
        missing += [(name, "never called through its __call__") for name in known if name not in seen]
    missing += [(name, "its state is not a float tensor of its shape") for name in sorted(parameters.skipped_state)]
    missing += [(name, "has had no gradient yet") for i, name in enumerate(parameters.names) if i not in parameters.with_gradient]
    fused = {name for name in taps.fused if not any(name == a or name.startswith(f"{a}.") for a, _ in taps.attention)}
    expected = len(taps.attention) + len(fused)
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
