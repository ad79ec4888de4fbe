import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import AdamMoments


@metric(unit="1", axes=("layer", "group"), needs="adam")
def adam_rms(adam: AdamMoments) -> Float[ndarray, "*where"]:
    r"""RMS of the gradient over Adam's second moment: $\sqrt{\frac1n\sum g_t^2 / \max(\hat v_t, \varepsilon^2)}$.

    StableAdamW's $\mathrm{RMS}_t$ (<https://arxiv.org/abs/2304.13013>). The moment includes this step's
    gradient, so the value never exceeds $1/\sqrt{1-\beta_2}$. Near 1 the second moment fits the
    gradient; far above 1 it lags behind and the step is too large.
    """
    return np.sqrt(adam.sum_ratio_sq / adam.count)
