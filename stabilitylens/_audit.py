"""What a model's architecture and recipe say before a step is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stabilitylens.anatomy import Anatomy
from stabilitylens.errors import BadInput
from stabilitylens.recipe import Recipe
from stabilitylens.report import Report, Subject
from stabilitylens.rules import Evidence, judge


def audit(model: Any, example_inputs: Any = None, recipe: Any = None, name: str | None = None) -> Report:
    """Judge a model by the static rules.

    Args:
        model: a ``torch.nn.Module``; it is run once, without gradients, and left as it was.
        example_inputs: what its forward takes; guessed from the model where None.
        recipe: a :class:`~stabilitylens.recipe.Recipe`, a dict of its fields, or the optimizer.
        name: how the report calls the model; its class name where None.

    Raises:
        stabilitylens.errors.BadInput: ``model`` is no module, its dataflow cannot be read, or
            ``recipe`` is none of the three.
    """
    anatomy = _anatomy(model, example_inputs)
    called, how = name or type(model).__name__, _recipe(recipe)
    findings = judge(Evidence(called, anatomy=anatomy, recipe=how), static=True)
    return Report("audit", (Subject(called, tuple(findings), anatomy, how),))


def _anatomy(model: Any, example_inputs: Any) -> Anatomy:
    try:
        from torch.nn import Module
    except ModuleNotFoundError as error:
        raise BadInput("audit reads a live model and needs PyTorch: pip install 'stabilitylens[torch]'") from error
    if not isinstance(model, Module):
        raise BadInput(f"audit needs a torch.nn.Module and was given {type(model).__name__}; pass the model itself")
    from stabilitylens.hooks.anatomy import read_anatomy

    return read_anatomy(model, example_inputs)


def _recipe(recipe: Any) -> Recipe | None:
    if recipe is None or isinstance(recipe, Recipe):
        return recipe
    if hasattr(recipe, "param_groups"):
        return Recipe.from_optimizer(recipe)
    if not isinstance(recipe, Mapping):
        raise BadInput(f"recipe is a {type(recipe).__name__}; pass a Recipe, a dict of its fields, or the optimizer")
    unknown = sorted(set(recipe) - set(Recipe.__dataclass_fields__))
    if unknown:
        known = ", ".join(Recipe.__dataclass_fields__)
        raise BadInput(f"the recipe has unknown fields ({', '.join(map(str, unknown))}); it may have {known}")
    return Recipe(**recipe)
