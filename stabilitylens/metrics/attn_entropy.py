from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import AttentionMoments


@metric(unit="nat", axes="attention head", needs="attention", worse="low")
def attn_entropy(attention: AttentionMoments) -> Float[ndarray, "*where"]:
    r"""Mean entropy of the attention rows: $\frac1n\sum_i H_i$ with $H_i = -\sum_j p_{ij} \ln p_{ij}$.

    Of the softmax as computed, bias and soft-cap included, and attention sinks: a learned logit beside those of the keys is
    one more $j$, though its share goes to no value. It grows with the number of visible keys; ``attn_entropy_ratio`` does not.
    """
    return attention.sum_entropy / attention.rows
