import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import LogitMoments


@metric(unit="nat", needs="logits")
def log_z(logits: LogitMoments) -> Float[ndarray, "*where"]:
    r"""Mean log of the output softmax's normaliser: $\frac1n\sum_i \ln \sum_v e^{z_{iv}}$.

    The loss does not see it: adding a constant to all logits of a position moves it and nothing else.
    Logits that are all equal to zero give the log of the vocabulary's size.
    """
    return np.where(logits.rows > 0, logits.sum_log_z / logits.rows, np.nan)
