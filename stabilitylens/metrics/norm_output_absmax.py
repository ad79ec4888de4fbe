import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="norm", needs="norm_output", opt_in=True)
def norm_output_absmax(norm_output: Moments) -> Float[ndarray, "*where"]:
    r"""Largest magnitude that leaves a normalisation layer: $\max |y|$.

    Far above ``norm_output_rms`` it shows outlier features, which gains amplify and low-precision formats lose (Wei
    et al. 2022, https://arxiv.org/abs/2209.13325).

    Observed in the layers that ``stabilitylens.fuse_norms`` took, over all their calls; opt-in: ``attach(…,
    metrics=["default", "norm_output_absmax"])``.
    """
    return np.where(norm_output.count > 0, norm_output.abs_max, np.nan)
