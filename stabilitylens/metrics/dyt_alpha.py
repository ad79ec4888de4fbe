from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import SlopeMoments


@metric(unit="1", axes="norm", needs="dyt_alpha")
def dyt_alpha(dyt_alpha: SlopeMoments) -> Float[ndarray, "*where"]:
    r"""Slope of an element-wise stand-in for a norm: the $\alpha$ of $\gamma \tanh(\alpha x) + \beta$ (DyT) or of erf (Derf).

    The mean where a layer has one for each channel. Not observed at layers that normalise by a statistic.
    """
    return dyt_alpha.sum / dyt_alpha.count
