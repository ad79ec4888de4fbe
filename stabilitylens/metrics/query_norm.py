from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import AttentionMoments


@metric(unit="1", axes="attention head", needs="attention")
def query_norm(attention: AttentionMoments) -> Float[ndarray, "*where"]:
    r"""Mean L2 norm of the queries over d_head: $\frac1n\sum_i \lVert q_i \rVert_2$.

    As they enter attention: after any QK-Norm and after RoPE. Queries that see no key are left out, here and in all that is
    taken over the rows of attention, and in self-attention padding, which is a position whose key no query sees. Attention is
    self-attention where queries and keys are made of the same tensor; where that cannot be told no query is taken for padding.
    """
    return attention.sum_query_norm / attention.rows
