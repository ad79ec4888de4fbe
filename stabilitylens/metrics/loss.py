from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric


@metric(unit="nat")
def loss(given: Float[ndarray, "*where"]) -> Float[ndarray, "*where"]:
    r"""Mean token cross-entropy of each step, as the loop computed it: $-\frac1n\sum_i \ln p(y_i)$.

    Handed over by ``lens.step(loss)`` at every step, so a spike that lasts one step is kept.
    """
    return given
