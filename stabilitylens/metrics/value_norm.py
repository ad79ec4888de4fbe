from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import KeyValueMoments


@metric(unit="1", axes="attention kv_head", needs="key_value")
def value_norm(key_value: KeyValueMoments) -> Float[ndarray, "*where"]:
    r"""Mean L2 norm of the values over d_head: $\frac1n\sum_i \lVert v_i \rVert_2$.

    The yardstick for ``query_norm`` and ``key_norm``: values do not enter the logits. Keys that no
    query sees are left out.
    """
    return key_value.sum_value_norm / key_value.rows
