from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import GainMoments


@metric(unit="1", axes="norm", needs="norm_gain")
def norm_gain(norm_gain: GainMoments) -> Float[ndarray, "*where"]:
    r"""Mean magnitude of the gain of a normalisation layer: $\frac1d\sum_i |\gamma_i|$.

    The gain is what the normalised values are multiplied by: 1 + w where that is how a layer keeps it. Layers without
    a gain are left out.
    """
    return norm_gain.sum_abs / norm_gain.count
