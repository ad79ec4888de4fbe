from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import NormMoments


@metric(unit="1", axes="attention kv_head", needs="key_proj")
def key_proj_norm(key_proj: NormMoments) -> Float[ndarray, "*where"]:
    r"""Mean L2 norm over d_head of the keys as their projection made them: $\frac1n\sum_j \lVert W_k x_j \rVert_2$.

    Before any QK-Norm and before RoPE; ``key_norm`` is after both. The rows are those of ``key_norm``. Not observed
    where the keys cannot be followed back to one projection, nor in a compiled forward.
    """
    return key_proj.sum_norm / key_proj.rows
