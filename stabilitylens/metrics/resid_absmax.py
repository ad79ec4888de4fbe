import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="layer", needs="resid")
def resid_absmax(resid: Moments) -> Float[ndarray, "*where"]:
    r"""Largest magnitude in the residual stream after each block: $\max |x|$.

    fp16 overflows at 65504.
    """
    return np.where(resid.count > 0, resid.abs_max, np.nan)
