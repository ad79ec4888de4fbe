import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes=("", "layer", "group"), needs="grad")
def grad_norm(grad: Moments) -> Float[ndarray, "*where"]:
    r"""L2 norm of the gradient before clipping: $\sqrt{\sum_\theta g_\theta^2}$.

    Over all trainable parameters, per block, and per module outside the blocks. Observed only where
    the loop calls ``lens.grads_ready()`` between backward and clipping; otherwise see
    ``grad_norm_clipped``. A parameter whose gradient is None adds nothing.
    """
    return np.where(grad.count > 0, np.sqrt(grad.sum_sq), np.nan)
