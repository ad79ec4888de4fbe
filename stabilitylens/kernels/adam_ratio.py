"""How large Adam's normalised update is, from a gradient and the second moment that divides it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

#: elements worked on at a time: a temporary of this size stays in the cache, and its fp32 sum is good to 1e-6
CHUNK = 1 << 17


def adam_ratio(
    grad: Float[Tensor, "*shape"], second_moment: Float[Tensor, "*shape"], step: Tensor | float, beta2: float, eps: float
) -> Float[Tensor, " field"]:
    r"""The fields of ``AdamMoments``, fp64: count, $\sum g^2/\max(\hat v, \varepsilon^2)$, entries with $\sqrt{\hat v} < \varepsilon$.

    $\hat v = v / (1 - \beta_2^t)$ with the moment that includes this step's gradient, as in StableAdamW
    (https://arxiv.org/abs/2304.13013).
    """
    correction = 1 - beta2**step
    least = eps * eps * correction
    if isinstance(least, Tensor):
        least = float(least) if least.device.type == "cpu" else least.to(grad.device)
    if grad.dtype != second_moment.dtype or grad.dtype in (torch.float16, torch.bfloat16):
        grad, second_moment = grad.float(), second_moment.float()
    flat, moment = grad.detach().reshape(-1), second_moment.to(grad.device).reshape(-1)
    work = torch.empty_like(flat[:CHUNK])
    sums, below = [], torch.zeros((), dtype=torch.float64, device=flat.device)
    for g, v in zip(flat.split(CHUNK), moment.split(CHUNK), strict=True):
        ratio = torch.div(g, torch.clamp(v, min=least, out=work[: len(g)]), out=work[: len(g)])
        sums.append(torch.dot(ratio, g))
        if v.device.type != "cpu" or (len(v) and v.amin() < least):
            below += (v < least).sum()
    total = torch.stack(sums).double().sum() if sums else torch.zeros_like(below)
    return torch.stack((torch.full_like(below, flat.numel()), total * correction, below))
