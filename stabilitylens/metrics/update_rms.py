import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes=("layer", "group"), needs="scaled_update")
def update_rms(scaled_update: Moments) -> Float[ndarray, "*where"]:
    r"""RMS of the step over the learning rate: $\sqrt{\sum (\Delta\theta / \eta)^2 / n}$.

    Comparable across learning rates. Adam without weight decay moves every entry by exactly 1 in its
    very first step, and by well under 1 once gradients are mostly noise.
    """
    return np.sqrt(scaled_update.sum_sq / scaled_update.count)
