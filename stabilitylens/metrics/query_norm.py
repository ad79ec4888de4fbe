from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import AttentionMoments


@metric(unit="1", axes="attention head", needs="attention")
def query_norm(attention: AttentionMoments) -> Float[ndarray, "*where"]:
    r"""Mean L2 norm of the queries over d_head: $\frac1n\sum_i \lVert q_i \rVert_2$.

    As they enter attention: after any QK-Norm and after RoPE. Queries that see no key are left out.
    """
    return attention.sum_query_norm / attention.rows
