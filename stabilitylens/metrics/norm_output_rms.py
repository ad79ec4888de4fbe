import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="norm", needs="norm_output", opt_in=True)
def norm_output_rms(norm_output: Moments) -> Float[ndarray, "*where"]:
    r"""RMS of what leaves a normalisation layer, gain and bias included: $\sqrt{\sum y^2 / n}$.

    About the RMS of the gain, unless the input is so small that ε decides.

    Observed in the layers that ``stabilitylens.fuse_norms`` took, over all their calls; opt-in: ``attach(…,
    metrics=["default", "norm_output_rms"])``.
    """
    return np.sqrt(norm_output.sum_sq / norm_output.count)
