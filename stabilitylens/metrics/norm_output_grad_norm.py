import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="norm", needs="norm_output_grad", opt_in=True)
def norm_output_grad_norm(norm_output_grad: Moments) -> Float[ndarray, "*where"]:
    r"""L2 of the gradient of the loss at a normalisation layer's output: $\lVert \partial L / \partial y \rVert$.

    A loss scale is divided out.

    Observed in the layers that ``stabilitylens.fuse_norms`` took, over all their calls; opt-in: ``attach(…,
    metrics=["default", "norm_output_grad_norm"])``.
    """
    return np.where(norm_output_grad.count > 0, np.sqrt(norm_output_grad.sum_sq), np.nan)
