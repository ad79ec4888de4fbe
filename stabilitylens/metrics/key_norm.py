from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import KeyValueMoments


@metric(unit="1", axes="attention kv_head", needs="key_value")
def key_norm(key_value: KeyValueMoments) -> Float[ndarray, "*where"]:
    r"""Mean L2 norm of the keys over d_head: $\frac1n\sum_i \lVert k_i \rVert_2$.

    As they enter attention: after any QK-Norm and after RoPE. Keys that no query sees are left out.
    """
    return key_value.sum_key_norm / key_value.rows
