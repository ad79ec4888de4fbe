import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", needs=("grad", "grad_clipped"), worse="low")
def clip_coef(grad: Moments, grad_clipped: Moments) -> Float[ndarray, "*where"]:
    r"""Factor that clipping multiplied the gradient by: $\min(1, \lVert g_\mathrm{clipped}\rVert / \lVert g\rVert)$.

    1 where nothing was clipped. Observed only where ``grad_norm`` is, and undefined (NaN) for a gradient
    that is zero throughout.
    """
    observed = (grad.count > 0) & (grad_clipped.count > 0) & (grad.sum_sq != 0)
    return np.where(observed, np.minimum(1.0, np.sqrt(grad_clipped.sum_sq / grad.sum_sq)), np.nan)
