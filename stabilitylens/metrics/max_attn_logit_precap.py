import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import CappedMoments


@metric(unit="1", axes="attention head", needs="soft_cap")
def max_attn_logit_precap(soft_cap: CappedMoments) -> Float[ndarray, "*where"]:
    r"""Largest attention logit before a soft-cap bounds it: $\max_{ij}\, s\, q_i \cdot k_j$, where $c \tanh(\cdot/c)$ follows.

    The value of ``max_attn_logit`` at the calls that have a soft-cap; not observed at those that have none. Far above
    the cap c, the cap is saturated and passes no gradient.
    """
    return np.where(np.isneginf(soft_cap.max_logit), np.nan, soft_cap.max_logit)
