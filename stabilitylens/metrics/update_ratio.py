import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes=("layer", "group"), needs=("update", "param"))
def update_ratio(update: Moments, param: Moments) -> Float[ndarray, "*where"]:
    r"""Size of a step against the size of what it changes: $\lVert\Delta\theta\rVert_2 / \lVert\theta\rVert_2$.

    Weight decay is part of the step. Undefined (NaN) where all parameters are zero.
    """
    observed = (update.count > 0) & (param.count > 0) & (param.sum_sq != 0)
    return np.where(observed, np.sqrt(update.sum_sq / param.sum_sq), np.nan)
