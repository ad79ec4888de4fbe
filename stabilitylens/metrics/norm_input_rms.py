import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="norm", needs="norm_input", opt_in=True)
def norm_input_rms(norm_input: Moments) -> Float[ndarray, "*where"]:
    r"""RMS of what enters a normalisation layer: $\sqrt{\sum x^2 / n}$.

    An RMSNorm divides by it, with ε under the root: where it falls to $\sqrt\varepsilon$ the layer scales by
    $1/\sqrt\varepsilon$ and normalises no longer (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).

    Observed in the layers that ``stabilitylens.fuse_norms`` took, over all their calls; opt-in: ``attach(…,
    metrics=["default", "norm_input_rms"])``.
    """
    return np.sqrt(norm_input.sum_sq / norm_input.count)
