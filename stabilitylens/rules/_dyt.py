"""Element-wise stand-ins for norms: DyT, γ·tanh(αx) + β, and Derf, γ·erf(αx + s) + β."""

from __future__ import annotations

from stabilitylens.anatomy import Anatomy, SubLayer
from stabilitylens.rules._placement import kinds_of
from stabilitylens.rules._rule import Lacks

#: kinds of norm as an anatomy names them
KINDS = ("dyt", "derf")


def bounded(anatomy: Anatomy) -> list[SubLayer]:
    """The branches whose norm is one of them.

    Raises:
        Lacks: nothing is known of the norms.
    """
    if anatomy.norm_placement is None and not kinds_of(anatomy):
        raise Lacks("the kind of the norms")
    return [sub for sub in anatomy.sub_layers if sub.norm_kind in KINDS]
