from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import AdamMoments


@metric(unit="1", axes=("layer", "group"), needs="adam")
def adam_eps_share(adam: AdamMoments) -> Float[ndarray, "*where"]:
    r"""Share of entries whose second moment lies under Adam's ε: $\#\{\sqrt{\hat v} < \varepsilon\} / n$.

    Their step is set by ε, not by the gradient's own scale. Rows of an embedding that no batch has
    shown yet count too.
    """
    return adam.below_eps / adam.count
