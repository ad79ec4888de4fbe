"""Change fields of an anatomy and a recipe as a remedy says, in all the parts that the field stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stabilitylens.anatomy import Anatomy, SubLayer
from stabilitylens.recipe import Recipe
from stabilitylens.rules import Lacks
from stabilitylens.rules._recipe import advised_warm_up

#: kinds that another kind of norm takes the place of
STAND_INS = ("dyt", "derf", "batchnorm")


@dataclass(frozen=True)
class State:
    """A model and how it is trained, as far as they are known."""

    anatomy: Anatomy
    recipe: Recipe | None


def apply(state: State, remedy: Mapping[str, Any]) -> State | None:
    """The state after a change; None where it does not suit the model, changes nothing, or a value cannot be computed."""
    if any(getattr(state.anatomy, name) == value for name, value in remedy.get("unless", {}).items()):
        return None
    try:
        anatomy = _anatomy(state, dict(remedy.get("anatomy", {})))
        recipe = _recipe(state, remedy.get("recipe", {}))
    except Lacks:
        return None
    changed = State(anatomy, recipe)
    return changed if changed != state else None


def _recipe(state: State, wanted: Mapping[str, Any]) -> Recipe | None:
    if not wanted:
        return state.recipe
    recipe = state.recipe or Recipe()
    values: dict[str, Any] = {name: _warm_up(recipe) if value == "=warm_up" else value for name, value in wanted.items()}
    return replace(recipe, **values)


def _warm_up(recipe: Recipe) -> int:
    return max(advised_warm_up(recipe), recipe.warmup_steps or 0)


def _anatomy(state: State, wanted: dict[str, Any]) -> Anatomy:
    """Model-level fields, and those of sub-layers and attention calls that they stand for."""
    anatomy = state.anatomy
    for name, value in wanted.items():
        anatomy = _SPECIAL[name](anatomy, value) if name in _SPECIAL else replace(anatomy, **{name: value})
    return replace(anatomy, uncertain=tuple(name for name in anatomy.uncertain if name not in wanted))


def _placement(anatomy: Anatomy, value: Any) -> Anatomy:
    kind = anatomy.norm_kind or "rmsnorm"
    subs = [replace(sub, placement=value, norm_kind=sub.norm_kind or kind) for sub in anatomy.sub_layers]
    return replace(anatomy, norm_placement=value, norm_kind=kind, sub_layers=tuple(subs))


def _norm_kind(anatomy: Anatomy, value: Any) -> Anatomy:
    """Replaces what is no norm of a token; in a model without norms, puts the kind everywhere."""
    kinds = {sub.norm_kind for sub in anatomy.sub_layers} & set(STAND_INS)
    subs = [
        replace(sub, norm_kind=value, alpha=None) if sub.norm_kind in kinds or sub.norm_kind is None else sub
        for sub in anatomy.sub_layers
    ]
    kind = value if anatomy.norm_kind in STAND_INS or anatomy.norm_kind is None else anatomy.norm_kind
    return replace(anatomy, norm_kind=kind, sub_layers=tuple(subs))


def _qk_norm(anatomy: Anatomy, value: Any) -> Anatomy:
    """On the calls that have none; a cap in its place goes."""
    calls = [replace(c, qk_norm=value, soft_cap=None) if c.qk_norm == "none" else c for c in anatomy.attention_calls]
    return replace(anatomy, qk_norm=value, soft_cap=None, attention_calls=tuple(calls))


def _scale(anatomy: Anatomy, _: Any) -> Anatomy:
    widths = [call.d_head or anatomy.d_head for call in anatomy.attention_calls]
    if not all(widths):
        raise Lacks("the width of a head")
    calls = [replace(call, scale=float(w or 1) ** -0.5) for call, w in zip(anatomy.attention_calls, widths, strict=True)]
    return replace(anatomy, attention_scale=calls[0].scale if calls else None, attention_calls=tuple(calls))


def _alpha(anatomy: Anatomy, _: Any) -> Anatomy:
    """The values of DyT's authors for the width; what is smaller stays."""
    from stabilitylens.rules.sl110_dyt_alpha import TABLE  # here, for rules are registered in the order of import

    row = next(((a, b) for width, a, b in TABLE if (anatomy.d_model or 0) >= width), None)
    if row is None:
        raise Lacks("values for this width")

    def start(sub: SubLayer) -> SubLayer:
        limit = row[0] if sub.kind == "attention" else row[1]
        return sub if sub.norm_kind != "dyt" or sub.alpha is None else replace(sub, alpha=min(sub.alpha, limit))

    return replace(anatomy, sub_layers=tuple(start(sub) for sub in anatomy.sub_layers))


_SPECIAL: dict[str, Callable[[Anatomy, Any], Anatomy]] = {
    "norm_placement": _placement, "norm_kind": _norm_kind, "qk_norm": _qk_norm, "attention_scale": _scale, "alpha": _alpha,
}
