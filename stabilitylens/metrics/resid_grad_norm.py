import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="layer", needs="resid_grad")
def resid_grad_norm(resid_grad: Moments) -> Float[ndarray, "*where"]:
    r"""L2 norm of the loss's gradient at each block's output: $\lVert \partial L / \partial x_\ell \rVert_2$.

    Over every element of the batch. Only the ratio between layers is comparable from run to run: the
    loss scale, the reduction and the batch size multiply all layers alike. A block that no gradient
    reaches, such as a frozen one, is not observed.
    """
    return np.where(resid_grad.count > 0, np.sqrt(resid_grad.sum_sq), np.nan)
