from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric


@metric(unit="1")
def loss_scale(given: Float[ndarray, "*where"]) -> Float[ndarray, "*where"]:
    r"""Factor that the gradient scaler of fp16 training multiplied the loss by, at each step.

    Halved when the scaler found an infinite gradient and skipped the step: normal in the first steps
    of a run. Not observed where no scaler is used.
    """
    return given
