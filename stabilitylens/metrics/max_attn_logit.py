import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import AttentionMoments


@metric(unit="1", axes="attention head", needs="attention")
def max_attn_logit(attention: AttentionMoments) -> Float[ndarray, "*where"]:
    r"""Largest attention logit over the pairs that the mask allows: $\max_{ij}\, s\, q_i \cdot k_j$.

    Scaled, before any soft-cap, with additive bias left out. A query with a NaN in it makes the value
    NaN: it has no largest logit.
    """
    top, poisoned = attention.max_logit, np.isnan(attention.sum_lse)
    return np.where(np.isneginf(top) | (poisoned & np.isfinite(top)), np.nan, top)
