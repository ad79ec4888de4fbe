"""Why a metric has no values: for each tap what it takes to see anything of it, said of what was looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from stabilitylens.hooks.attention import BY_HAND, OTHER_AXIS, PIECES
from stabilitylens.hooks.loose import OUTSIDE
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.subject import COMPILED_SENTENCE, Subject
from stabilitylens.hooks.taps import ForwardTaps
from stabilitylens.hooks.whole import WholeParameters, WholeSubject, WholeTaps
from stabilitylens.metrics import METRICS, Metric
from stabilitylens.metrics._metric import PARAMETER_TAPS

COMPILED_AFTER = "the forward runs compiled, where only blocks and scaled dot-product attention are observed"
COMPILED_CACHE = "the forward runs compiled with a key-value cache in it: set use_cache=False for training"
NO_GRADIENT = "no parameter had a gradient when the optimizer stepped"
NO_STEP = "the optimizer took no step on the model's parameters"
NO_FORWARD = (
    "no forward of the model was seen: call the model itself, model(…), with gradients enabled, or the parts of one that "
    "has no forward inside `with lens.forward():`"
)
NO_ATTENTION = (
    "no attention call was recognised: read are scaled dot-product attention, FlexAttention, FlashAttention, functions in the "
    "registry of transformers, and a softmax over the last axis of a product of two activations; the model has none of these, or "
    "hides it in a kernel"
)
NO_GAIN = (
    "no normalisation layer with a gain was recognised: read are torch's own norms, and a weight that multiplies, channel by "
    "channel, what is divided by a root, a variance or a norm; the model has none of these, or hides it in a kernel"
)
NO_SLOPE = "no tanh or erf of an input times a weight was seen to stand in for a norm"
NO_HEAD = (
    "no output layer with the shape of the vocabulary was seen to run: read is a linear module, not a product that the model "
    "writes out itself"
)
NO_BRANCH = "no addition to the residual stream was seen inside a block"
NO_ROUTER = "no router was seen to choose experts"
NO_VALUE = "what the attention weights multiply was not recognised"
#: what is said of an attention call that was met and not read
UNREAD_ATTENTION = frozenset({PIECES, OTHER_AXIS, BY_HAND})


@dataclass(frozen=True)
class Reasons:
    """Of one sampled step.

    Attributes:
        observed: the taps that gave something.
    """

    subject: Subject | WholeSubject
    taps: ForwardTaps | WholeTaps
    parameters: ParameterTaps | WholeParameters
    observed: frozenset[str]

    @property
    def forward(self) -> str | None:
        """Why nothing, or not everything, is seen of the forward; None where there is no such reason."""
        if self.taps.compiled:
            return COMPILED_AFTER
        if self.subject.compiled:
            return COMPILED_SENTENCE
        return None if self.taps.ran else NO_FORWARD

    def of(self, metric: Metric) -> str:
        """Why a metric has no values."""
        missing = [tap for tap in metric.needs if tap not in self.observed]
        return self._of_tap((missing or list(metric.needs))[0])

    def _of_tap(self, tap: str) -> str:
        if tap in PARAMETER_TAPS:
            return self._of_parameters(tap)
        return _OF_TAP[tap](self) if tap in _OF_TAP else self.forward or "nothing that it is read from was seen to run"

    def _of_parameters(self, tap: str) -> str:
        apart = self.apart
        if apart:
            return apart
        if not self.parameters.names:
            return "the model has no parameter that is trained"
        if tap != "param" and not self.parameters.with_gradient:
            return NO_GRADIENT
        return {
            "grad": "lens.grads_ready() was not called before the optimizer's step, so gradients may be clipped",
            "adam": "the optimizer keeps no second moment of its parameters' shape",
        }.get(tap, NO_STEP)

    @property
    def apart(self) -> str:
        """Why parameters are not read although there are some; empty where they are."""
        if self.parameters.names and self.subject.apart:
            return f"the parameters are sharded over processes, and {self.subject.apart}"
        return next(iter(self.subject.unreadable.values()), "") if not self.parameters.names else ""

    def blocks(self) -> str:
        """Of the residual stream."""
        if not self.subject.blocks:
            return "no repeated blocks were found in the model"
        return self.forward or (OUTSIDE if OUTSIDE in self.taps.skipped.values() else "no block ran through its __call__")

    def gradient(self) -> str:
        """Of the gradient of the residual stream."""
        if "resid" not in self.observed:
            return self.blocks()
        return COMPILED_CACHE if self.taps.compiled else "no gradient reached a block's output"

    def attention(self) -> str:
        """Of attention calls."""
        fused = ", ".join(sorted(self.taps.fused))
        unread = unread_attention(self.taps)
        if self.forward or fused:
            return self.forward or f"{fused} runs as torch's fused encoder"
        if not unread:
            return NO_ATTENTION
        more = f", and so {len(unread) - 1} more" if len(unread) > 1 else ""
        return f"no attention call was read: of {unread[0] or 'the model'} {self.taps.skipped[unread[0]]}{more}"

    def projection(self) -> str:
        """Of what projections made."""
        told = "they cannot be followed back to one projection"
        return self.forward or told if "attention" in self.observed else self.attention()

    def cap(self) -> str:
        """Of soft-caps."""
        return self.forward or "no attention call was seen to bound its logits" if "attention" in self.observed else self.attention()

    def experts(self) -> str:
        """Of the gradients of experts."""
        return "no gradient of an expert's weights was read" if "expert" in self.observed else self.forward or NO_ROUTER


def unread_attention(taps: ForwardTaps | WholeTaps) -> list[str]:
    """Modules whose attention was met and not read."""
    return [name for name, why in taps.skipped.items() if why in UNREAD_ATTENTION]


def _said(text: str) -> Callable[[Reasons], str]:
    return lambda reasons: reasons.forward or text


_OF_TAP: dict[str, Callable[[Reasons], str]] = {
    "resid": Reasons.blocks, "resid_4": Reasons.blocks, "resid_grad": Reasons.gradient,
    "branch": _said(NO_BRANCH), "stream": _said(NO_BRANCH),
    "attention": Reasons.attention, "key_value": Reasons.attention,
    "query_proj": Reasons.projection, "key_proj": Reasons.projection, "soft_cap": Reasons.cap,
    "norm_gain": _said(NO_GAIN), "dyt_alpha": _said(NO_SLOPE), "logits": _said(NO_HEAD),
    "router": _said(NO_ROUTER), "expert": _said(NO_ROUTER), "expert_grad": Reasons.experts,
}  # fmt: skip


def observed_taps(names: Iterable[str]) -> frozenset[str]:
    """The taps that metrics of these names are read from."""
    have = set(names)
    return frozenset(tap for metric in METRICS if metric.name in have for tap in metric.needs)


def of_metrics(reasons: Reasons, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Every metric that is sampled by default and is not among these, with its reason."""
    have = set(names)
    said = {*have, *reasons.taps.skipped}
    yield from ((m.name, reasons.of(m)) for m in METRICS if m.needs and not m.opt_in and m.name not in said)
