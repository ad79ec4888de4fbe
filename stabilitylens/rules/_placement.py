"""What rules ask of an anatomy: the placement of its norms, its depth, and whether that is certain."""

from __future__ import annotations

from stabilitylens.anatomy import Anatomy, Placement
from stabilitylens.rules._rule import Evidence, Lacks


def known(evidence: Evidence) -> Anatomy:
    """The anatomy of the evidence.

    Raises:
        Lacks: there is none.
    """
    if evidence.anatomy is None:
        raise Lacks("the anatomy is not known")
    return evidence.anatomy


def placement_of(anatomy: Anatomy) -> Placement:
    """Where the norms of most branches are.

    Raises:
        Lacks: that is not known.
    """
    if anatomy.norm_placement is None:
        raise Lacks("the placement of the norms")
    return anatomy.norm_placement


def depth_of(anatomy: Anatomy) -> int:
    """The number of blocks.

    Raises:
        Lacks: that is not known.
    """
    if not anatomy.n_layers:
        raise Lacks("the number of layers")
    return anatomy.n_layers


def qk_norm_of(anatomy: Anatomy) -> str:
    """What most attention calls do to queries and keys.

    Raises:
        Lacks: there is no attention call, or that is not known.
    """
    if anatomy.n_attention == 0:
        raise Lacks("an attention call in the model")
    if anatomy.qk_norm is None:
        raise Lacks("whether queries and keys are normalised")
    return anatomy.qk_norm


def kinds_of(anatomy: Anatomy) -> list[str]:
    """The kind of norm of every branch that has one, or the model's where branches are not told apart."""
    kinds = [sub.norm_kind for sub in anatomy.sub_layers if sub.norm_kind is not None]
    return kinds or ([anatomy.norm_kind] if anatomy.norm_kind is not None else [])


def doubt(anatomy: Anatomy, *fields: str) -> float:
    """What a confidence is multiplied by: a half where one of the fields is uncertain."""
    return 0.5 if set(fields) & set(anatomy.uncertain) else 1.0
