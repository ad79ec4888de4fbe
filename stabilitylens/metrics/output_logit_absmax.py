import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import LogitMoments


@metric(unit="1", needs="logits")
def output_logit_absmax(logits: LogitMoments) -> Float[ndarray, "*where"]:
    r"""Largest magnitude of an output logit: $\max_{iv} |z_{iv}|$."""
    return np.where(logits.rows > 0, logits.abs_max, np.nan)
