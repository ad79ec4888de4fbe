from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import AttentionMoments


@metric(unit="1", axes="attention head", needs="attention", worse="low")
def attn_entropy_ratio(attention: AttentionMoments) -> Float[ndarray, "*where"]:
    r"""Mean entropy of the attention rows over its largest possible value: $\frac1n\sum_i H_i / \ln n_i$.

    $n_i$ is the number of keys that row $i$ sees, and of attention sinks beside them; rows in which it is 1 are left out.
    1 is uniform attention at any sequence length, 0 is one key a row.
    """
    return attention.sum_entropy_ratio / attention.rows_gt1
