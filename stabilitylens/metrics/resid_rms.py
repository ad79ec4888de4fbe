import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="layer", needs="resid")
def resid_rms(resid: Moments) -> Float[ndarray, "*where"]:
    r"""RMS of the residual stream after each block: $\sqrt{\sum x^2 / n}$."""
    return np.sqrt(resid.sum_sq / resid.count)
