from stabilitylens.anatomy import SubLayer
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._dyt import bounded
from stabilitylens.rules._placement import known

#: least width, and α at the start before attention and elsewhere, of the authors' 7B, 13B, 34B and 70B models (https://github.com/jiachenzhu/DyT)
TABLE = ((8192, 0.2, 0.05), (5120, 0.6, 0.15), (4096, 0.8, 0.2))
#: rounding of a value that was kept in 16 bit
ROUNDING = 1.01


@rule(code="SL110", needs=("anatomy",), since="0.1.0", evidence_scale=7e10)
def dyt_alpha(evidence: Evidence) -> list[Fired]:
    """DyT starts from an α no larger than its authors used at that width.

    ## What it flags
    Branches normalised by DyT, tanh(αx), whose α is larger than its authors started from in a language model as wide:
    a warning. Their values are, before attention and elsewhere:

    - 0.8 and 0.2 at a width of 4,096 (7B);
    - 0.6 and 0.15 at 5,120 (13B);
    - 0.2 and 0.05 at 8,192 (34B and 70B).

    Narrower models are clear. The α of a model that was trained before is no longer its start.

    ## Why it matters
    A large α saturates tanh from the first step on: the branch sees the signs of its input and little else, and
    no gradient passes through what is saturated. Wider models need a smaller α.

    ## Evidence
    - The table is that of the authors' language models: <https://github.com/jiachenzhu/DyT>.
    - Their paper studies the start of α, and finds large models sensitive to it: <https://arxiv.org/abs/2503.10622>.

    ## Example
    32 of 32 branches before attention start from α = 0.8, and DyT's authors from 0.2 at a width of 8,192.

    ## Known false positives
    - Inputs that are scaled down before DyT, which a larger α makes up for.
    - Models that are audited after training.

    ## Remedy
    Start α from the table above; narrower models are less sensitive to it.
    """
    anatomy = known(evidence)
    branches = [sub for sub in bounded(anatomy) if sub.norm_kind == "dyt"]
    if not branches:
        return []
    if anatomy.d_model is None or all(sub.alpha is None for sub in branches):
        raise Lacks("the width of the model" if anatomy.d_model is None else "the value of α, which needs real weights")
    row = next(((width, a, b) for width, a, b in TABLE if anatomy.d_model >= width), None)
    if row is None:
        return []
    width, attention, other = row
    before = [sub for sub in branches if sub.kind == "attention"]
    rest = [sub for sub in branches if sub.kind != "attention"]
    return [*_above(before, attention, width, "before attention"), *_above(rest, other, width, "elsewhere")]


def _above(branches: list[SubLayer], limit: float, width: int, where: str) -> list[Fired]:
    high = [sub.alpha for sub in branches if sub.alpha is not None and sub.alpha > ROUNDING * limit]
    if not high:
        return []
    message = (
        f"{len(high)} of {len(branches)} branches {where} start from α = {max(high):.3g}, and DyT's authors from {limit:g} "
        f"at a width of {width:,}"
    )
    return [Fired("warning", message, max(high), limit, confidence=0.7)]
