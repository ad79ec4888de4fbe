"""The counterfactual qk_norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stabilitylens.hooks.attention import SDPA
from stabilitylens.hooks.counterfactuals._attention import Calls, arguments
from stabilitylens.hooks.counterfactuals._functions import Around
from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.hooks.functions import Function

#: for a vector of zeros, as in torch's RMSNorm of fp32
EPS = 1e-6


@counterfactual(suspect="attention-logit-growth")
def qk_norm(trial: Trial) -> None:
    """Normalise queries and keys, as they enter scaled dot-product attention, by their RMS over a head, from the snapshot on.

    The gain of each dimension of a head is the RMS that it had at the snapshot, and each is divided by it first, so that logits
    change as little as they can at first; from there on they can no longer grow: <https://arxiv.org/abs/2010.04245>,
    <https://arxiv.org/abs/2302.05442>. Tokens whose queries or keys had other lengths than the rest do change, which costs some loss
    in the first steps. The gain is not trained. Attention that is spelled out is not reached.
    """
    calls = Calls(trial)
    gains: dict[tuple[int, str], Tensor] = {}

    def normed(place: tuple[int, str], x: Tensor) -> Tensor:
        wide = x.float()
        if place not in gains:
            gains[place] = wide.detach().square().mean((*range(x.dim() - 3), -2), keepdim=True).sqrt().clamp_min(EPS)
        gain = gains[place]
        return (nn.functional.rms_norm(wide / gain, x.shape[-1:], eps=EPS) * gain).to(x.dtype)

    def instead(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given, number = arguments(args, kwargs), calls.next()
        q, k = (normed((number, name), given.pop(name)) for name in ("query", "key"))
        return func(q, k, given.pop("value"), **given)

    def check() -> None:
        if not gains:
            raise NotApplicable("no call of scaled_dot_product_attention was seen; attention that is spelled out is not reached")

    trial.stack.enter_context(Around(dict.fromkeys(SDPA, instead)))
    trial.at_end(check)
