from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import ExpertMoments


@metric(unit="1", axes="layer expert", needs="expert")
def expert_load(expert: ExpertMoments) -> Float[ndarray, "*where"]:
    r"""Share of the tokens that a router chose an expert for: $n_e / n$, which adds up to $k$ over the experts.

    As routed, before any capacity limit drops tokens. Even use is k over the number of experts; 0 is an expert
    without tokens.
    """
    return expert.chosen / expert.tokens
