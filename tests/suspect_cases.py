"""For each suspect a run in which it comes first, and one in which it is unlikely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stabilitylens.explanation import contexts
from stabilitylens.findings import Finding, Where
from stabilitylens.header import Header
from stabilitylens.incidents import Incident
from stabilitylens.recipe import Recipe
from stabilitylens.run import Event, Run, Series
from stabilitylens.suspects import Case

N, AT, LAYERS = 400, 300, 4
STEPS = np.arange(1, N + 1)
RECIPE = Recipe("AdamW", lr=1e-3, beta1=0.9, beta2=0.95, warmup_steps=100, precision="bf16", grad_accumulation=1)


def noise(seed: int, *shape: int, size: float = 0.03) -> np.ndarray:
    return np.exp(size * np.random.default_rng(seed).normal(size=(N, *shape)))


@dataclass
class Made:
    """A run of 400 steps whose loss does something at step 300, and what a detector said of it."""

    run: Run
    incident: Incident
    findings: tuple[Finding, ...] = ()

    @property
    def case(self) -> Case:
        (context,) = contexts(self.run, [self.incident])
        return Case(self.run, self.incident, context, self.findings)

    def scalar(self, name: str, values: np.ndarray) -> Made:
        self.run.series[name] = Series(name, STEPS, np.asarray(values, dtype=np.float64))
        return self

    def layers(self, name: str, values: np.ndarray) -> Made:
        key = f"{name}/layer"
        self.run.series[key] = Series(key, STEPS, values, ("layer",), {"layer": tuple(f"blocks.{i}" for i in range(LAYERS))})
        return self

    def happened(self, kind: str, *steps: int) -> Made:
        self.run.events += [Event(step, kind) for step in steps]
        return self

    def recipe(self, **fields: object) -> Made:
        self.run.header = replace(self.run.header, recipe=replace(RECIPE, **fields))
        return self

    def fired(self, code: str, message: str, step: int = AT) -> Made:
        self.findings += (Finding(self.run.path, code, code, "fired", "error", where=Where(steps=(step, step)), message=message),)
        return self


def made(kind: str = "spike", rise: int = 0, width: int = 20, height: float = 3.0, metric: str = "loss", **other: object) -> Made:
    """Loss 2.5, up by ``height`` from step 300 on over ``rise`` steps, back within ``width``, beside quiet series."""
    loss = 2.5 * noise(0)
    after = np.arange(width) - rise
    shape = np.minimum(1.0, (np.arange(width) + 1) / (rise + 1)) * np.exp(-np.maximum(after, 0) / 6)
    up = height * shape if width > 1 else np.array([height])
    loss[AT - 1 : AT - 1 + width] += up[: N - AT + 1]
    fields: dict[str, object] = dict(
        start_step=AT, end_step=AT + width - 1, start_index=AT - 1, end_index=AT + width - 2, peak_step=AT + rise,
        peak_index=AT - 1 + rise, width=max(1, width // 3), magnitude=30.0, recovery="fast", cost_steps=width,
        severity="warning", confidence=1.0, explanation="",
    )
    out = Made(Run("runs/made", {}, Header(recipe=RECIPE)), Incident(kind, metric, **fields | other))
    out.scalar("loss", loss).scalar("lr", np.full(N, 1e-3)).scalar("grad_norm", 0.5 * noise(1))
    for i, name in enumerate(("resid_rms", "update_rms", "resid_grad_norm", "param_norm")):
        out.layers(name, noise(2 + i, LAYERS))
    return out


def broken(metric: str = "loss", width: int = 100, **other: object) -> Made:
    """A metric that is NaN from step 300 on for ``width`` steps."""
    out = made("nonfinite", width=width, height=0.0, metric=metric, **{"recovery": "none", "severity": "error"} | other)
    out.incident = replace(out.incident, width=width)
    out.run.series[metric].values[AT - 1 : AT - 1 + width] = np.nan
    return out


def from_300(before: float, after: float, lag: int = 0) -> np.ndarray:
    return np.where(STEPS < AT + lag, before, after)


def bad_batch() -> Made:
    out = made("outlier", width=1)
    out.run.series["grad_norm"].values[AT - 1] *= 5
    return out


def slow_rise() -> Made:
    return made(rise=8)


def learning_rate() -> Made:
    return slow_rise().scalar("lr", from_300(1e-3, 1e-2, -2))


def learning_rate_low() -> Made:
    return made("outlier", width=1).scalar("lr", np.where(STEPS < 150, 1e-2, 1e-3))


def early(out: Made) -> Made:
    """The same, with the record's steps counted so that it happened at step 30."""
    shift = AT - 30
    for name, series in out.run.series.items():
        out.run.series[name] = replace(series, steps=series.steps[: N - shift], values=series.values[shift:])
    i = out.incident
    out.incident = replace(
        i, start_step=30, peak_step=i.peak_step - shift, end_step=i.end_step - shift, start_index=29,
        peak_index=i.peak_index - shift, end_index=i.end_index - shift,
    )  # fmt: skip
    return out


def warm_up() -> Made:
    return early(slow_rise()).recipe(warmup_steps=5, beta2=0.999).fired("SL601", "Post-LN with 5 steps of warm-up", 1)


def fp16() -> Made:
    absmax = 500 * noise(9, LAYERS)
    absmax[AT - 3 :, 2] = np.inf
    out = broken().recipe(precision="fp16").scalar("loss_scale", from_300(65536.0, 32768.0))
    return out.layers("resid_absmax", absmax).happened("step_skipped", AT, AT + 1)


def logits(level: float, growth: float = 1.0) -> np.ndarray:
    return level * noise(9, LAYERS) * growth ** np.clip((STEPS - AT + 20) / 20, 0, 1)[:, None]


def attention() -> Made:
    out = slow_rise().fired("SL201", "max_attn_logit of layer 2 grew from 3 to 22,400", AT - 40)
    return out.layers("max_attn_logit", logits(500.0, 40.0))


def stale() -> Made:
    rms = 0.9 * noise(9, LAYERS)
    rms[AT - 5 : AT - 1, 0] = 4.0
    return slow_rise().recipe(beta2=0.999).layers("adam_rms", rms)


def stale_not() -> Made:
    return slow_rise().recipe(beta2=0.999).layers("adam_rms", 0.9 * noise(9, LAYERS))


def cold() -> Made:
    out = slow_rise().happened("resume", AT - 1).fired("SL306", "update_rms was 1.000 in 4 of 4 blocks", AT - 1)
    out.run.series["update_rms/layer"].values[AT - 2 :] = 1.0
    return out


def order() -> Made:
    out = made("level_shift", width=100, recovery="none").happened("resume", AT - 100)
    out.run.series["loss"].values[AT - 101 : AT - 1] *= 0.8
    return out.scalar("epoch", STEPS / AT)


def order_not() -> Made:
    return made().scalar("epoch", STEPS / 10_000)


def accumulation() -> Made:
    out = made("level_shift", width=100, height=0.0, recovery="none").recipe(grad_accumulation=8)
    out.run.series["loss"].values[AT - 1 :] *= 8
    return out.scalar("grad_norm", out.run.series["grad_norm"].values * from_300(1, 8))


def masked(rows: float) -> Made:
    out = broken("grad_norm", width=1, recovery="fast")
    return out.layers("masked_rows", np.where(STEPS[:, None] >= AT - 1, rows, 0.0) * np.ones(LAYERS))


def no_labels() -> Made:
    out = broken(width=1, recovery="fast")
    out.run.series["grad_norm"].values[AT - 1] = 0.0
    return out


def skipped() -> Made:
    out = made("steps_skipped", metric="steps_skipped", width=100, height=0.0, recovery=None)
    return out.happened("step_skipped", *range(AT, N + 1)).fired("SL503", "the optimizer took no step in 100 of 100 steps")


def artefact() -> Made:
    out = made("collapse", width=101, height=0.0, recovery="none").fired("SL003", "the loss is exactly 0 and grad_norm is NaN")
    out.run.series["loss"].values[AT - 1 :] = 0.0
    out.run.series["grad_norm"].values[AT - 1 :] = np.nan
    return out


def machine() -> Made:
    out = broken("grad_norm", width=1, recovery="fast").scalar("step_time", from_300(0.5, 4.0))
    out.run.series["param_norm/layer"].values[AT - 1 :, 1] *= 40
    return out.layers("masked_rows", np.zeros((N, LAYERS)))


def unexplained() -> Made:
    return made(rise=8).layers("adam_rms", 0.9 * noise(9, LAYERS))


#: name: (a run in which it comes first, a run in which it is excluded or far from likely)
CASES: dict[str, tuple[Callable[[], Made], Callable[[], Made]]] = {
    "bad-batch": (bad_batch, slow_rise),
    "learning-rate": (learning_rate, learning_rate_low),
    "warm-up-too-short": (warm_up, slow_rise),
    "fp16-overflow": (fp16, slow_rise),
    "attention-logit-growth": (attention, lambda: slow_rise().layers("max_attn_logit", logits(5.0))),
    "stale-second-moment": (stale, stale_not),
    "cold-optimizer": (cold, slow_rise),
    "data-order": (order, order_not),
    "gradient-accumulation": (accumulation, slow_rise),
    "masked-rows": (lambda: masked(7.0), lambda: masked(0.0)),
    "no-supervised-tokens": (no_labels, broken),
    "all-steps-skipped": (skipped, lambda: slow_rise().happened("resume", 5)),
    "logging-artefact": (artefact, bad_batch),
    "hardware": (machine, learning_rate),
    "unknown": (unexplained, bad_batch),
}
