from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import RouterMoments


@metric(unit="nat", axes="layer", needs="router", worse="low")
def router_entropy(router: RouterMoments) -> Float[ndarray, "*where"]:
    r"""Mean entropy of the router's distribution over the experts: $\frac1n\sum_i -\sum_e p_{ie} \ln p_{ie}$.

    p is the softmax of the router's logits, or their sigmoid made to add up to one where the model gates by sigmoid.
    Bias that only balances the load is left out.
    """
    return router.sum_entropy / router.tokens
