"""Raw tensors, the rows that taps would make of them, and every metric once more in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stabilitylens.metrics import Sample
from stabilitylens.moments import (
    AdamMoments,
    AttentionMoments,
    CappedMoments,
    ExpertGradMoments,
    ExpertMoments,
    FourthMoments,
    GainMoments,
    KeyValueMoments,
    LogitMoments,
    Moments,
    NormMoments,
    RouterMoments,
    SlopeMoments,
    Statistics,
)

NORMS, EXPERTS, TOP_K = 5, 6, 2
LAYERS, BRANCHES, CALLS, HEADS, KV_HEADS, KEYS, D_HEAD, VOCAB = 3, 2, 2, 4, 2, 7, 5, 11
#: blocks 0 to 2 with two parameters each, and one module outside the blocks
LAYER_OF = np.array([0, 0, 1, 1, 2, 2, -1])
GROUP_OF = np.array([-1, -1, -1, -1, -1, -1, 0])
EPS = 0.3


@dataclass(frozen=True)
class Raw:
    """What a model would hand to the taps at one step."""

    resid: np.ndarray
    resid_grad: np.ndarray
    branch: np.ndarray
    stream: np.ndarray
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    logits: np.ndarray
    param: list[np.ndarray]
    grad: list[np.ndarray]
    moment: list[np.ndarray]
    query_made: np.ndarray
    key_made: np.ndarray
    gain: np.ndarray
    slope: np.ndarray
    router: np.ndarray
    expert_grad: np.ndarray
    norm_in: np.ndarray
    norm_out: np.ndarray
    norm_grad: np.ndarray
    lr: float = 0.01
    clip: float = 0.5

    @property
    def grad_clipped(self) -> list[np.ndarray]:
        return [g * self.clip for g in self.grad]

    @property
    def update(self) -> list[np.ndarray]:
        return [-self.lr * g / np.sqrt(v) for g, v in zip(self.grad, self.moment, strict=True)]


def raw(seed: int = 0, scale: float = 1.0) -> Raw:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: scale * rng.normal(size=shape)  # noqa: E731
    sizes = (3, 8, 3, 8, 3, 8, 20)
    return Raw(
        draw(LAYERS, 6, 5), draw(LAYERS, 6, 5), draw(LAYERS, BRANCHES, 9), draw(LAYERS, BRANCHES, 9),
        draw(CALLS, HEADS, KEYS, D_HEAD), draw(CALLS, KV_HEADS, KEYS, D_HEAD), draw(CALLS, KV_HEADS, KEYS, D_HEAD),
        draw(6, VOCAB), [draw(n) for n in sizes], [draw(n) for n in sizes],
        [rng.random(n) + 0.01 for n in sizes],
        draw(CALLS, HEADS, KEYS, D_HEAD), draw(CALLS, KV_HEADS, KEYS, D_HEAD), draw(NORMS, 8), draw(NORMS, 1),
        draw(LAYERS, 9, EXPERTS), draw(LAYERS, EXPERTS, 12), draw(NORMS, 6, 5), draw(NORMS, 6, 5), draw(NORMS, 6, 5),
    )


def moments(x: np.ndarray, keep: int) -> Moments:
    axes = tuple(range(keep, x.ndim))
    size = np.full(x.shape[:keep], float(np.prod(x.shape[keep:])))
    return Moments(*map(np.asarray, (
        size, x.sum(axes), np.abs(x).sum(axes), (x**2).sum(axes), np.abs(x).max(axes),
        (~np.isfinite(x)).sum(axes).astype(float),
    )))


def stack(rows: list[Statistics]) -> Statistics:
    return type(rows[0])(*(np.array([getattr(row, name) for row in rows]) for name in rows[0].names()))


def softmax_rows(r: Raw) -> tuple[np.ndarray, np.ndarray]:
    """Causal logits (call, head, query, key), -inf where masked, and the probabilities."""
    key = np.repeat(r.key, HEADS // KV_HEADS, axis=1)
    logits = np.einsum("chqd,chkd->chqk", r.query, key) / np.sqrt(D_HEAD)
    logits = np.where(np.tril(np.ones((KEYS, KEYS), dtype=bool)), logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return logits, weights / weights.sum(-1, keepdims=True)


def row_entropy(p: np.ndarray) -> np.ndarray:
    return -np.sum(p * np.log(p, out=np.zeros_like(p), where=p > 0), axis=-1)


def attention(r: Raw) -> AttentionMoments:
    logits, p = softmax_rows(r)
    entropy, where = row_entropy(p), (CALLS, HEADS)
    return AttentionMoments(
        np.full(where, float(KEYS)), np.full(where, KEYS - 1.0), logits.max((-2, -1)), entropy.sum(-1),
        (entropy[..., 1:] / np.log(np.arange(2, KEYS + 1))).sum(-1), np.logaddexp.reduce(logits, axis=-1).sum(-1),
        np.linalg.norm(r.query, axis=-1).sum(-1), np.zeros(where),
    )


def router_probabilities(r: Raw) -> np.ndarray:
    p = np.exp(r.router - r.router.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def chosen(r: Raw) -> np.ndarray:
    """How many of its tokens each layer's router chose each expert for."""
    best = np.argsort(r.router, axis=-1)[..., -TOP_K:]
    return np.array([np.bincount(b.ravel(), minlength=EXPERTS) for b in best], dtype=float)


def later_taps(r: Raw) -> dict[str, Statistics]:
    made = [NormMoments(np.full(x.shape[:2], float(KEYS)), np.linalg.norm(x, axis=-1).sum(-1)) for x in (r.query_made, r.key_made)]
    where, tokens = (LAYERS, EXPERTS), float(r.router.shape[1])
    return {
        "query_proj": made[0], "key_proj": made[1], "soft_cap": CappedMoments(softmax_rows(r)[0].max((-2, -1))),
        "resid_4": FourthMoments(np.full(LAYERS, 30.0), (r.resid**2).sum((1, 2)), (r.resid**4).sum((1, 2))),
        "norm_gain": GainMoments(np.full(NORMS, 8.0), np.abs(r.gain).sum(1)),
        "dyt_alpha": SlopeMoments(np.full(NORMS, 1.0), r.slope.sum(1)),
        "norm_input": moments(r.norm_in, 1), "norm_output": moments(r.norm_out, 1), "norm_output_grad": moments(r.norm_grad, 1),
        "router": RouterMoments(np.full(LAYERS, tokens), row_entropy(router_probabilities(r)).sum(-1)),
        "expert": ExpertMoments(np.full(where, tokens), chosen(r)),
        "expert_grad": ExpertGradMoments(np.full(where, 12.0), (r.expert_grad**2).sum(-1)),
    }


def taps(r: Raw) -> dict[str, Statistics]:
    adam = [
        AdamMoments(*map(np.array, (float(g.size), (g**2 / np.maximum(v, EPS**2)).sum(), float((np.sqrt(v) < EPS).sum()))))
        for g, v in zip(r.grad, r.moment, strict=True)
    ]
    of = lambda tensors: stack([moments(x, 0) for x in tensors])  # noqa: E731
    norms = [np.linalg.norm(x, axis=-1).sum(-1) for x in (r.key, r.value)]
    return {
        "resid": moments(r.resid, 1), "resid_grad": moments(r.resid_grad, 1),
        "branch": moments(r.branch, 2), "stream": moments(r.stream, 2), "attention": attention(r),
        "key_value": KeyValueMoments(np.full((CALLS, KV_HEADS), float(KEYS)), *norms),
        "logits": LogitMoments(
            np.array(6.0), np.array(np.logaddexp.reduce(r.logits, axis=-1).sum()), np.array(np.abs(r.logits).max())
        ),
        "param": of(r.param), "grad": of(r.grad), "grad_clipped": of(r.grad_clipped), "update": of(r.update),
        "scaled_update": of([u / r.lr for u in r.update]), "adam": stack(adam),
    } | later_taps(r)


def sample(rows: dict[str, Statistics]) -> Sample:
    return Sample(rows, LAYER_OF, GROUP_OF, LAYERS, 1)


def empty(rows: dict[str, Statistics]) -> dict[str, Statistics]:
    """The same taps with nothing added to any row."""
    return {
        tap: type(s)(*(np.full(np.shape(getattr(s, n)), e) for n, e in zip(s.names(), s.identity(), strict=True)))
        for tap, s in rows.items()
    }


def pooled(of: Callable[[Raw, list[int]], float]) -> Callable[[Raw, str], np.ndarray]:
    """A number over some parameters, as an array over the axes asked for."""

    def over(r: Raw, axes: str) -> np.ndarray:
        index, size = {"": (np.zeros(7), 0), "layer": (LAYER_OF, LAYERS), "group": (GROUP_OF, 1)}[axes]
        values = [of(r, list(np.flatnonzero(index == i))) for i in range(max(size, 1))]
        return np.array(values) if size else np.array(values[0])

    return over


def flat(tensors: list[np.ndarray], which: list[int]) -> np.ndarray:
    return np.concatenate([tensors[i] for i in which])


def rms(x: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    return np.sqrt(np.mean(x**2, axis=axis))


def _norm(tensors: str) -> Callable[[Raw, str], np.ndarray]:
    return pooled(lambda r, which: float(np.linalg.norm(flat(getattr(r, tensors), which))))


#: what each metric must be, from the raw tensors
ORACLES: dict[str, Callable[[Raw, str], np.ndarray]] = {
    "grad_norm": _norm("grad"),
    "grad_norm_clipped": _norm("grad_clipped"),
    "param_norm": _norm("param"),
    "clip_coef": lambda r, axes: np.array(min(1.0, r.clip)),
    "grad_rms": pooled(lambda r, which: float(rms(flat(r.grad_clipped, which)))),
    "update_rms": pooled(lambda r, which: float(rms(flat(r.update, which)) / r.lr)),
    "update_ratio": pooled(
        lambda r, which: float(np.linalg.norm(flat(r.update, which)) / np.linalg.norm(flat(r.param, which)))
    ),
    "adam_rms": pooled(
        lambda r, which: float(rms(flat(r.grad, which) / np.maximum(np.sqrt(flat(r.moment, which)), EPS)))
    ),
    "adam_eps_share": pooled(lambda r, which: float(np.mean(np.sqrt(flat(r.moment, which)) < EPS))),
    "resid_rms": lambda r, axes: rms(r.resid, (1, 2)),
    "resid_absmax": lambda r, axes: np.abs(r.resid).max((1, 2)),
    "nonfinite_count": lambda r, axes: (~np.isfinite(r.resid)).sum((1, 2)),
    "resid_grad_norm": lambda r, axes: np.linalg.norm(r.resid_grad.reshape(LAYERS, -1), axis=1),
    "branch_ratio": lambda r, axes: rms(r.branch, 2) / rms(r.stream, 2),
    "query_norm": lambda r, axes: np.linalg.norm(r.query, axis=-1).mean(-1),
    "key_norm": lambda r, axes: np.linalg.norm(r.key, axis=-1).mean(-1),
    "value_norm": lambda r, axes: np.linalg.norm(r.value, axis=-1).mean(-1),
    "max_attn_logit": lambda r, axes: softmax_rows(r)[0].max((-2, -1)),
    "masked_rows": lambda r, axes: np.zeros((CALLS, HEADS)),
    "attn_entropy": lambda r, axes: row_entropy(softmax_rows(r)[1]).mean(-1),
    "attn_entropy_ratio": lambda r, axes: (
        row_entropy(softmax_rows(r)[1])[..., 1:] / np.log(np.arange(2, KEYS + 1))
    ).mean(-1),
    "log_z": lambda r, axes: np.array(np.log(np.exp(r.logits).sum(-1)).mean()),
    "output_logit_absmax": lambda r, axes: np.array(np.abs(r.logits).max()),
    "query_proj_norm": lambda r, axes: np.linalg.norm(r.query_made, axis=-1).mean(-1),
    "key_proj_norm": lambda r, axes: np.linalg.norm(r.key_made, axis=-1).mean(-1),
    "max_attn_logit_precap": lambda r, axes: softmax_rows(r)[0].max((-2, -1)),
    "act_kurtosis": lambda r, axes: np.mean(r.resid**4, (1, 2)) / np.mean(r.resid**2, (1, 2)) ** 2,
    "norm_gain": lambda r, axes: np.abs(r.gain).mean(1),
    "dyt_alpha": lambda r, axes: r.slope[:, 0],
    "norm_input_rms": lambda r, axes: np.sqrt(np.square(r.norm_in).mean((1, 2))),
    "norm_output_rms": lambda r, axes: np.sqrt(np.square(r.norm_out).mean((1, 2))),
    "norm_output_absmax": lambda r, axes: np.abs(r.norm_out).max((1, 2)),
    "norm_output_grad_norm": lambda r, axes: np.sqrt(np.square(r.norm_grad).sum((1, 2))),
    "router_entropy": lambda r, axes: row_entropy(router_probabilities(r)).mean(-1),
    "expert_load": lambda r, axes: chosen(r) / r.router.shape[1],
    "expert_grad_norm": lambda r, axes: np.where(chosen(r) > 0, np.linalg.norm(r.expert_grad, axis=-1), np.nan),
}

#: what multiplying every raw tensor by c multiplies a metric by: c to this power
DEGREE = {
    "grad_norm": 1, "grad_norm_clipped": 1, "param_norm": 1, "grad_rms": 1, "clip_coef": 0, "update_rms": 1,
    "update_ratio": 0, "resid_rms": 1, "resid_absmax": 1, "resid_grad_norm": 1, "branch_ratio": 0,
    "query_norm": 1, "key_norm": 1, "value_norm": 1, "max_attn_logit": 2, "output_logit_absmax": 1,
    "query_proj_norm": 1, "key_proj_norm": 1, "max_attn_logit_precap": 2, "act_kurtosis": 0, "norm_gain": 1,
    "norm_input_rms": 1, "norm_output_rms": 1, "norm_output_absmax": 1, "norm_output_grad_norm": 1,
}
