"""What a model's architecture and recipe say before a step is taken, and what it does at initialisation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stabilitylens.anatomy import UNREAD, Anatomy
from stabilitylens.errors import BadInput
from stabilitylens.recipe import Recipe
from stabilitylens.report import Report, Subject
from stabilitylens.rules import Evidence, judge

if TYPE_CHECKING:
    from stabilitylens.run import Run


def audit(
    model: Any, example_inputs: Any = None, recipe: Any = None, name: str | None = None, *, init: bool = False
) -> Report:
    """Judge a model before it is trained.

    Args:
        model: a ``torch.nn.Module``; it is run without the hooks that were put on it, and left as it was.
        example_inputs: what its forward takes; guessed from the model where None.
        recipe: a :class:`~stabilitylens.recipe.Recipe`, a dict of its fields, the optimizer, or the path of a
            recipe file or of a recorded run.
        name: how the report calls the model; its class name where None.
        init: also run a copy forward and backward once, and judge gradients by depth, residual growth, attention
            logits and entropy at initialisation. Needs real weights.

    Raises:
        stabilitylens.errors.BadInput: ``model`` is no module, it does not run on ``example_inputs``, it cannot be
            measured, or ``recipe`` is none of these.
    """
    how = recipe_of(recipe)
    anatomy = _anatomy(model, example_inputs)
    called, measured = name or type(model).__name__, _measure(model, example_inputs) if init else None
    findings = judge(Evidence(called, anatomy, how, measured), static=True)
    return Report("audit", (Subject(called, tuple(findings), anatomy, how, initial=measured),))


def _anatomy(model: Any, example_inputs: Any) -> Anatomy:
    try:
        from torch.nn import Module
    except ModuleNotFoundError as error:
        raise BadInput("audit reads a live model and needs PyTorch: pip install 'stabilitylens[torch]'") from error
    if not isinstance(model, Module):
        raise BadInput(f"audit needs a torch.nn.Module and was given {type(model).__name__}; pass the model itself")
    from stabilitylens.hooks.anatomy import read_anatomy

    anatomy: Anatomy = read_anatomy(model, example_inputs)
    unread = next((note for note in anatomy.notes if note.startswith(UNREAD)), None)
    if unread is not None and example_inputs is not None:
        raise BadInput(f"the model does not run on the example inputs: {unread.removeprefix(UNREAD)}")
    return anatomy


def _measure(model: Any, example_inputs: Any) -> Run:
    from stabilitylens.hooks.initial import measure_initial

    measured: Run = measure_initial(model, example_inputs)
    return measured


def recipe_of(given: Any) -> Recipe | None:
    """A recipe from what stands for one; see :func:`audit`.

    Raises:
        stabilitylens.errors.BadInput: it is none of these.
    """
    if given is None or isinstance(given, Recipe):
        return given
    if isinstance(given, str | Path):
        return _from_path(Path(given))
    if hasattr(given, "param_groups"):
        return Recipe.from_optimizer(given)
    if not isinstance(given, Mapping):
        kinds = "a Recipe, a dict of its fields, the optimizer, or the path of a recipe file or a run"
        raise BadInput(f"recipe is a {type(given).__name__}; pass {kinds}")
    unknown = sorted(set(given) - set(Recipe.__dataclass_fields__))
    if unknown:
        known = ", ".join(Recipe.__dataclass_fields__)
        raise BadInput(f"the recipe has unknown fields ({', '.join(map(str, unknown))}); it may have {known}")
    return Recipe(**given)


def _from_path(path: Path) -> Recipe:
    if not path.is_dir():
        from stabilitylens.recipe_files import read_recipe

        return read_recipe(path)
    from stabilitylens.run import load

    recorded = load(path).header.recipe
    if recorded is None:
        raise BadInput(f"the run in {path} says nothing of its recipe; give a recipe file")
    return recorded
