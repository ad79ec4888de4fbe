from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric


@metric(unit="1")
def lr(given: Float[ndarray, "*where"]) -> Float[ndarray, "*where"]:
    r"""Learning rate of each step: the largest over the optimizer's parameter groups."""
    return given
