from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import NormMoments


@metric(unit="1", axes="attention head", needs="query_proj")
def query_proj_norm(query_proj: NormMoments) -> Float[ndarray, "*where"]:
    r"""Mean L2 norm over d_head of the queries as their projection made them: $\frac1n\sum_i \lVert W_q x_i \rVert_2$.

    Before any QK-Norm and before RoPE; ``query_norm`` is after both. The rows are those of ``query_norm``. Not observed
    where the queries cannot be followed back to one projection, nor in a compiled forward.
    """
    return query_proj.sum_norm / query_proj.rows
