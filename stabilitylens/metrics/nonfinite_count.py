import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="layer", needs="resid")
def nonfinite_count(resid: Moments) -> Float[ndarray, "*where"]:
    r"""NaN and infinite elements of the residual stream after each block: $\#\{x : |x| \not< \infty\}$.

    The first block with any names the place where a forward broke.
    """
    return np.where(resid.count > 0, resid.nonfinite, np.nan)
