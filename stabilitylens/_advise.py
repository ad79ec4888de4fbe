"""Advice before training: what to choose for a plan, or what to change in a model."""

from __future__ import annotations

from typing import Any, overload

from stabilitylens.advice import Advice, Proposal, Situation
from stabilitylens.anatomy import Anatomy
from stabilitylens.errors import BadInput


@overload
def advise(
    model: None = None, *, params: float, layers: int, seq_len: int | None = None, batch_size: int | None = None,
    task: str = "lm", precision: str | None = None, **more: Any,
) -> Advice: ...
@overload
def advise(model: Any, *, example_inputs: Any = None, recipe: Any = None, name: str | None = None) -> Proposal: ...


def advise(
    model: Any = None, *, example_inputs: Any = None, recipe: Any = None, name: str | None = None, **plan: Any
) -> Advice | Proposal:
    """Recommend a normalisation, its placement and a recipe; or the smallest change to a model.

    From numbers, ``advise(params=70e9, layers=80, seq_len=8192, task="lm")``: a walk of the decision tree in
    ``stabilitylens/advice``; each choice says why, how strong the evidence is, what contradicts it and what it costs.
    The model and recipe that it describes are judged by our own static rules.

    From a model, ``advise(model, recipe="train.yaml")``: it is audited, and the changes that clear the findings with the
    least effort are named, each verified by judging the changed model and recipe again.

    Args:
        model: a ``torch.nn.Module`` as :func:`stabilitylens.audit` takes it, or an
            :class:`~stabilitylens.anatomy.Anatomy`.
        example_inputs, recipe, name: as in :func:`stabilitylens.audit`; with a model only.
        plan: without a model, the fields of :class:`stabilitylens.advice.Situation`; ``params`` and ``layers`` are
            needed.

    Raises:
        stabilitylens.errors.BadInput: a value is out of range or unknown, ``params`` or ``layers`` is missing, or the
            model cannot be audited.
    """
    if model is None:
        if (example_inputs, recipe, name) != (None, None, None):
            raise BadInput("advise was given a recipe, inputs or a name without a model; pass the model first")
        return _from_plan(plan)
    if plan:
        raise BadInput(f"advise was given a model and also {', '.join(plan)}, which a model says itself; leave one of them out")
    return _from_model(model, example_inputs, recipe, name)


def _from_plan(plan: dict[str, Any]) -> Advice:
    from stabilitylens.advice._tree import advise_on

    unknown = sorted(set(plan) - set(Situation.__dataclass_fields__))
    if unknown:
        known = ", ".join(Situation.__dataclass_fields__)
        raise BadInput(f"advise does not know {', '.join(unknown)}; a plan may have {known}")
    missing = [field for field in ("params", "layers") if plan.get(field) is None]
    if missing:
        raise BadInput(f"advise needs {' and '.join(missing)}, as advise(params=7e9, layers=32); or a model")
    return advise_on(Situation(**plan))


def _from_model(model: Any, example_inputs: Any, recipe: Any, name: str | None) -> Proposal:
    from stabilitylens._audit import audit, recipe_of
    from stabilitylens.advice._propose import propose

    if isinstance(model, Anatomy):
        return propose(name or "the model", model, recipe_of(recipe))
    (subject,) = audit(model, example_inputs, recipe, name).subjects
    assert subject.anatomy is not None
    return propose(subject.name, subject.anatomy, subject.recipe)
