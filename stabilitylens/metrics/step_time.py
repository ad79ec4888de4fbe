from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric


@metric(unit="s")
def step_time(given: Float[ndarray, "*where"]) -> Float[ndarray, "*where"]:
    r"""Wall-clock time from one step boundary to the next, on the host.

    It contains whatever the loop does between two calls of ``lens.step``: data, evaluation, checkpoints.
    """
    return given
