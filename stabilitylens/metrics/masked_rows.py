import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import AttentionMoments


@metric(unit="1", axes="attention head", needs="attention")
def masked_rows(attention: AttentionMoments) -> Float[ndarray, "*where"]:
    r"""Query rows that the mask leaves without a key: $\#\{i : \text{no } j \text{ is visible}\}$.

    Softmax over no key is 0/0. Some kernels return zeros there, others NaN, and a backward through it can
    spoil every gradient of the layer although the row is not in the loss. Where there is an attention sink it is no 0/0, and
    no row is counted.
    """
    return np.where(attention.rows + attention.masked_rows > 0, attention.masked_rows, np.nan)
