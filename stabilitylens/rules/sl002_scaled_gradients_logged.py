import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._track import Track, recorded, sampled, track
from stabilitylens.run import Run

#: heuristic: points on each side of a jump whose medians are compared
SIDE = 5
#: heuristic: difference of the base-two logarithms up to which norm and scale moved alike
ALIKE = 0.3
#: heuristic: jumps that make a pattern
JUMPS = 3
#: heuristic: spread of the points around a jump, in base-two logarithms, up to which a doubling shows
STEADY = 0.4
#: heuristic: relative difference of the intervals between doublings that a fixed growth interval allows
EVEN = 0.1
#: heuristic: where no scale was recorded, the size that unscaled norms do not have
SCALED = 1000.0


@rule(code="SL002", needs=("grad_norm",), since="0.1.0")
def scaled_gradients_logged(evidence: Evidence) -> list[Fired]:
    """The gradient norm in the log is that of the true loss, not of the scaled one.

    ## What it flags
    A warning where

    - `grad_norm` moved by the same factor as `loss_scale` at three quarters of its changes, at least three of them; or
    - no scale was recorded, and a `grad_norm` past 1,000 doubled at least three times, at even intervals.

    ## Why it matters
    A gradient scaler multiplies the loss by up to 65,536 and more, and changes the factor every 2,000 steps. A norm
    taken before unscaling shows the scaler and not the model, and a clip threshold applied there clips everything.

    ## Evidence
    - A norm taken before `unscale_` is off by the scale: <https://github.com/Lightning-AI/pytorch-lightning/issues/9599>,
      <https://github.com/Lightning-AI/pytorch-lightning/issues/9694>. Checked for this rule: 139,270 before and 2.125 after, at a scale of
      65,536.
    - The scaler's growth interval is 2,000 steps: <https://docs.pytorch.org/docs/stable/amp.html>.

    All margins are heuristic.

    ## Example
    `grad_norm` moved by the factor of `loss_scale` at 6 of its 6 changes.

    ## Known false positives
    - A training whose gradients change by themselves at the moment of a skipped step.

    ## Remedy
    Call `scaler.unscale_(optimizer)` before reading and clipping, or pass the scaler to `attach`.
    """
    run = recorded(evidence)
    series = sampled(run, "grad_norm")
    if series.axes:
        raise Lacks("grad_norm of the whole model")
    norm = track(run, series, ())
    if run.why_missing("loss_scale") is None and not run["loss_scale"].axes:
        return _with_scale(run, norm)
    return _by_doubling(norm)


def _log2(values: Float[ndarray, " step"]) -> Float[ndarray, " step"]:
    with np.errstate(all="ignore"):
        return np.log2(np.where(np.isfinite(values) & (values > 0), values, np.nan))


def _jump(logs: Float[ndarray, " step"], i: int) -> float:
    """Median of the points from ``i`` on less that of the points before; NaN where they are unsteady."""
    before, after = logs[max(0, i - SIDE) : i], logs[i : i + SIDE]
    if len(before) < SIDE or len(after) < SIDE or np.isnan(before).any() or np.isnan(after).any():
        return float("nan")
    if max(np.ptp(before), np.ptp(after)) > 2 * STEADY:
        return float("nan")
    return float(np.median(after) - np.median(before))


def _with_scale(run: Run, norm: Track) -> list[Fired]:
    scale = track(run, run["loss_scale"], ())
    logs, factor = _log2(norm.values), _log2(scale.values)
    moved = np.flatnonzero(np.abs(np.diff(factor)) > 0) + 1
    at = np.searchsorted(norm.steps, scale.steps[moved])
    jumps = np.array([_jump(logs, int(i)) for i in at])
    usable = ~np.isnan(jumps)
    alike = np.abs(jumps - (factor[moved] - factor[moved - 1])) <= ALIKE
    told, same = int(np.sum(usable)), int(np.sum(alike & usable))
    if told < JUMPS or same < 0.75 * told:
        return []
    message = f"grad_norm moved by the factor of loss_scale at {same} of its {told} changes"
    return [_fired(message, norm, float(same))]


def _by_doubling(norm: Track) -> list[Fired]:
    if not np.median(norm.values) > SCALED:
        return []
    logs = _log2(norm.values)
    jumps = np.array([_jump(logs, i) for i in range(len(logs))])
    doubled = np.flatnonzero(np.abs(jumps - 1.0) <= ALIKE)
    starts = [g[int(np.argmin(np.abs(jumps[g] - 1.0)))] for g in np.split(doubled, np.flatnonzero(np.diff(doubled) > 1) + 1) if len(g)]
    gaps = np.diff(norm.steps[starts]) if len(starts) > JUMPS - 1 else np.array([])
    if not len(gaps) or np.ptp(gaps) > EVEN * np.mean(gaps) + 1:
        return []
    message = f"grad_norm doubled {len(starts)} times, every {np.mean(gaps):,.0f} steps, as a gradient scaler's factor does"
    return [_fired(message, norm, float(len(starts)))]


def _fired(message: str, norm: Track, count: float) -> Fired:
    where = Where(steps=(int(norm.steps[0]), int(norm.steps[-1])))
    return Fired("warning", message, count, float(JUMPS), where, confidence=0.8)
