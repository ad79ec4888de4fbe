from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import FourthMoments


@metric(unit="1", axes="layer", needs="resid_4", opt_in=True)
def act_kurtosis(resid_4: FourthMoments) -> Float[ndarray, "*where"]:
    r"""Kurtosis of the residual stream after each block: $n \sum x^4 / (\sum x^2)^2$.

    About zero, so that an offset counts too: 3 for a Gaussian, n for one element among n zeros. Opt-in, for it reads
    the whole stream once more: ``attach(…, metrics=["default", "act_kurtosis"])``.
    """
    return resid_4.count * resid_4.sum_4 / resid_4.sum_sq**2
