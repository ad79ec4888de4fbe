import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes=("layer", "group"), needs="grad_clipped", worse="low")
def grad_rms(grad_clipped: Moments) -> Float[ndarray, "*where"]:
    r"""RMS of the gradient's entries as the optimizer saw them, after clipping: $\sqrt{\sum g^2 / n}$.

    What Adam's ε is to be compared with: entries well below ε no longer move by a step of normal size.
    """
    return np.sqrt(grad_clipped.sum_sq / grad_clipped.count)
