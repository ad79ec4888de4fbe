import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.metrics import metric
from stabilitylens.moments import ExpertGradMoments, ExpertMoments


@metric(unit="1", axes="layer expert", needs=("expert_grad", "expert"))
def expert_grad_norm(expert_grad: ExpertGradMoments, expert: ExpertMoments) -> Float[ndarray, "*where"]:
    r"""L2 norm of the gradient of each expert's parameters: $\sqrt{\sum_{\theta \in e} g_\theta^2}$.

    Read where ``grad_norm`` is, or after clipping where the loop does not call ``lens.grads_ready()``. An expert
    that got no token at this step has no gradient to speak of: it is not observed, never zero.
    """
    seen = (expert_grad.count > 0) & (expert.chosen > 0)
    return np.where(seen, np.sqrt(expert_grad.sum_sq), np.nan)
