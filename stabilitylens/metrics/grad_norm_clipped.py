import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes=("", "layer", "group"), needs="grad_clipped")
def grad_norm_clipped(grad_clipped: Moments) -> Float[ndarray, "*where"]:
    r"""L2 norm of the gradient that the optimizer saw, after clipping: $\sqrt{\sum_\theta g_\theta^2}$.

    Over all trainable parameters, per block, and per module outside the blocks. A series pinned at the
    clip threshold says that every step is clipped; the size before clipping is ``grad_norm``.
    """
    return np.where(grad_clipped.count > 0, np.sqrt(grad_clipped.sum_sq), np.nan)
