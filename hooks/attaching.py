"""attach: put a lens on a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stabilitylens.anatomy import Anatomy
from stabilitylens.errors import BadInput
from stabilitylens.hooks.bare import UnknownShapes, bare_copy
from stabilitylens.hooks.blackbox.options import BlackBox, options_of
from stabilitylens.hooks.cadence import Every
from stabilitylens.hooks.coverage import unread
from stabilitylens.hooks.distributed import distributed
from stabilitylens.hooks.guard import Guard
from stabilitylens.hooks.lens import Lens
from stabilitylens.hooks.optimizers import unwrapped
from stabilitylens.hooks.selection import selected
from stabilitylens.hooks.subject import COMPILED_SENTENCE, Subject, observer_of, observers
from stabilitylens.recipe import Recipe


def _optimizers(given: Any) -> list[Optimizer]:
    several = [unwrapped(o) for o in ([given] if not isinstance(given, Iterable) else given)]
    wrong = [o for o in several if not hasattr(o, "param_groups") or not hasattr(o, "register_step_pre_hook")]
    if wrong:
        given = type(wrong[0]).__name__
        raise BadInput(f"attach() needs a torch.optim.Optimizer or a list of them as its second argument, not {given}")
    return several


def _folder(given: Any) -> Path:
    if not isinstance(given, (str, PathLike)) or not str(given):
        raise BadInput(f"attach() needs the run's folder as its third argument, as 'runs/gpt', not {given!r}")
    return Path(given)


def _check_owned(subject: Subject, optimizers: list[Optimizer], guard: Guard) -> None:
    mine = {id(p) for p in subject.parameters.values()}
    theirs = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    if optimizers and mine and not mine & theirs:
        guard.say(
            "the optimizer owns none of the model's trainable parameters, so updates are not observed: "
            "pass the optimizer that was made from this model's parameters"
        )


def _recipe(given: Recipe | dict[str, Any] | None, optimizers: list[Optimizer], scaler: Any, total_steps: int | None) -> Recipe:
    recipe = Recipe.from_optimizer(optimizers[0]) if optimizers else Recipe()
    known = given.to_dict() if isinstance(given, Recipe) else dict(given or {})
    stated = {k: v for k, v in known.items() if v is not None and k in Recipe.__dataclass_fields__}
    recipe = replace(recipe, **stated)
    if scaler is not None and recipe.loss_scaling is None:
        recipe = replace(recipe, loss_scaling=bool(scaler.is_enabled()))
    return recipe if total_steps is None else replace(recipe, total_steps=total_steps)


def _check_told(model: nn.Module, scaler: Any, total_steps: Any, recipe: Any) -> None:
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise BadInput("the model has lazy modules whose parameters do not exist yet; run one forward, then attach")
    if scaler is not None and not (hasattr(scaler, "is_enabled") and hasattr(scaler, "get_scale")):
        raise BadInput(f"attach() needs a torch.amp.GradScaler as scaler=, not {type(scaler).__name__}")
    if total_steps is not None and (type(total_steps) is not int or total_steps < 1):
        raise BadInput(f"total_steps={total_steps!r} is no number of optimizer steps; pass a whole number, 1 or more")
    if recipe is not None and not isinstance(recipe, (Recipe, dict)):
        raise BadInput(f"attach() needs a Recipe or a dictionary as recipe=, not {type(recipe).__name__}")
    unknown = sorted(map(str, recipe.keys() - Recipe.__dataclass_fields__.keys())) if isinstance(recipe, dict) else []
    if unknown:
        raise BadInput(f"recipe= has {', '.join(unknown)}, which no rule knows; its fields are {', '.join(Recipe.__dataclass_fields__)}")


def _anatomy(model: nn.Module, guard: Guard) -> Anatomy | None:
    try:
        from stabilitylens.hooks.anatomy import read_anatomy

        # to run the model itself could wait for processes that attach nothing
        anatomy = read_anatomy(model if distributed() is None else bare_copy(model))
    except UnknownShapes as error:
        guard.say(f"the model's anatomy is not read: {error}")
        return None
    except Exception as error:
        guard.failed("reading the model's anatomy", error)
        return None
    why = unread(anatomy)
    if why is not None:
        guard.say(f"the model's anatomy is not read, so rules about it say nothing: {why}")
    return anatomy


def attach(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer],
    logdir: str | Path,
    *,
    every: Every = 10,
    metrics: Iterable[str] | None = None,
    scaler: Any = None,
    total_steps: int | None = None,
    recipe: Recipe | dict[str, Any] | None = None,
    blackbox: bool | BlackBox = False,
) -> Lens:
    """Observe a model while it trains; the training stays what it is, to the bit.

    Args:
        model: any Transformer; attach before ``torch.compile``.
        optimizers: one or several, owning the model's parameters.
        logdir: the run's folder; everything goes into its ``stabilitylens`` sub-folder.
        every: arrays are sampled at the first step, also after a resume, and at every multiple of a number, at the steps for
            which a function of the step is true, or with ``"auto"`` at one in 50, and at 20 in a row once loss or gradient
            norm smell of trouble; loss, learning rate and gradient norm are kept at every step.
        metrics: names of those that are to be sampled, e.g. ``["grad_norm", "update_ratio"]``; where left out all that are
            not opt-in, which the name ``"default"`` stands for: ``["default", "act_kurtosis"]``. What no metric needs is not
            read, and costs nothing.
        scaler: the ``GradScaler``, if there is one, so that gradients are recorded unscaled.
        total_steps: planned number of optimizer steps, for the rules.
        recipe: what the rules should know and the optimizer does not tell, e.g. ``{"precision": "bf16"}``.
        blackbox: keep the last steps' micro-batches and random states, and dump them when something goes wrong; a
            ``stabilitylens.BlackBox`` says how much, and whether weights are kept too, which :func:`stabilitylens.replay` needs.

    Returns:
        The lens. A model that is observed already keeps its lens, which is returned with a warning.

    Raises:
        BadInput: the model is no module, an optimizer is none, ``every`` is no cadence, a metric is unknown, or ``logdir`` can't be written.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"attach() needs a torch.nn.Module as its first argument, not {type(model).__name__}")
    chosen = selected(metrics)
    _check_told(model, scaler, total_steps, recipe)
    kept = options_of(blackbox)
    folder = _folder(logdir)
    several = _optimizers(optimizers)
    guard = Guard()
    already = observer_of(model)
    if already is not None:
        guard.say(
            f"the model is observed already and keeps its first lens, so nothing is recorded in {folder}: "
            "call its close() before attaching another"
        )
        return already  # type: ignore[no-any-return]
    if any(lens.logdir.resolve() == folder.resolve() for lens in observers()):
        guard.say(
            f"another model is being recorded in {folder}, and the later record of a step hides the earlier one: "
            "give each model a folder of its own"
        )
    subject = Subject(model)
    if subject.compiled:
        guard.say(COMPILED_SENTENCE)
    _check_owned(subject, several, guard)
    lens = Lens(
        subject, several, folder, every=every, metrics=chosen, scaler=scaler,
        recipe=_recipe(recipe, several, scaler, total_steps), anatomy=_anatomy(model, guard), guard=guard,
    )  # fmt: skip
    lens.keep(kept, subject, scaler)
    return lens
