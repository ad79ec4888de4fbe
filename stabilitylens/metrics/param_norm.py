import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes=("", "layer", "group"), needs="param")
def param_norm(param: Moments) -> Float[ndarray, "*where"]:
    r"""L2 norm of the trainable parameters: $\sqrt{\sum \theta^2}$.

    Over the model, per block, and per module outside the blocks. A parameter that two modules share is
    counted once.
    """
    return np.where(param.count > 0, np.sqrt(param.sum_sq), np.nan)
