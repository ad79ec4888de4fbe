from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric


@metric(unit="1", worse="low")
def embedding_rms(given: Float[ndarray, "*where"]) -> Float[ndarray, "*where"]:
    r"""RMS of the residual stream before the first block: $\sqrt{\sum x^2 / n}$.

    Measured by ``stabilitylens audit --init``; a loop may hand it over with ``lens.step(loss, embedding_rms=…)``.
    """
    return given
