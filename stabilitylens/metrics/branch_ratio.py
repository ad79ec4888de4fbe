import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import Moments


@metric(unit="1", axes="layer branch", needs=("branch", "stream"))
def branch_ratio(branch: Moments, stream: Moments) -> Float[ndarray, "*where"]:
    r"""What a sub-layer adds against what it is added to: $\mathrm{RMS}(F(x)) / \mathrm{RMS}(x)$.

    One value for each residual branch of each block, in the order of the forward. Undefined (NaN) where
    the stream is zero throughout.
    """
    observed = (branch.count > 0) & (stream.count > 0) & (stream.sum_sq != 0)
    ratio = (branch.sum_sq / branch.count) / (stream.sum_sq / stream.count)
    return np.where(observed, np.sqrt(ratio), np.nan)
