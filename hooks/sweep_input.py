"""What a sweep over learning rates is given: said in one sentence where it is something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from stabilitylens.errors import BadInput


def kind(value: Any) -> str:
    """``a list``, ``an int``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_functions(make_model: Any, data: Any, loss: Any, optimizer: Any) -> None:
    """Each run needs its own model and its own batches, so that both are functions.

    Raises:
        BadInput: one of them is none.
    """
    if isinstance(make_model, nn.Module):
        raise BadInput("make_model is a model, which the first run would have trained; give a function that makes a fresh one")
    wanted = {
        "make_model": (make_model, "a function that makes a fresh model"),
        "data": (data, "a function that gives the batches anew at each call, as in data=lambda: batches"),
        "loss": (loss, "a function of model and batch"),
        "optimizer": (optimizer, "its class, or a function of parameters and lr"),
    }
    for name, (value, action) in wanted.items():
        if not callable(value):
            raise BadInput(f"lr_sensitivity was given {kind(value)} as {name}; give {action}")


def check_numbers(warmup: Any, max_grad_norm: Any, every: Any) -> None:
    """Numbers that would be taken for something else.

    Raises:
        BadInput: one of them is out of range.
    """
    for name, value, least in (("warmup", warmup, 0), ("every", every, 1)):
        if not isinstance(value, int) or value < least:
            raise BadInput(f"{name} is {value!r}; give a whole number of steps, {least} or more")
    if max_grad_norm is not None and not (isinstance(max_grad_norm, int | float) and max_grad_norm > 0):
        raise BadInput(f"max_grad_norm is {max_grad_norm!r}; give a positive norm, or None for no clipping")


def rates_of(lrs: Any) -> list[float]:
    """The learning rates, rising.

    Raises:
        BadInput: they are none, too few, or not all positive.
    """
    wanted = "lr_sensitivity needs at least two different positive learning rates"
    try:
        given = list(lrs)
        rates = sorted({float(lr) for lr in given})
    except (TypeError, ValueError) as error:
        raise BadInput(f"{wanted}, not {lrs!r}; give a list, as in lrs=[1e-3, 1e-2]") from error
    if len(rates) < 2 or not all(0 < lr < float("inf") for lr in rates):
        raise BadInput(f"{wanted}, not {given}")
    return rates


def folders_of(rates: list[float], parent: Path) -> dict[float, Path]:
    """A folder for each learning rate; those that are alike in six digits have all of theirs in the name."""
    count = Counter(f"{lr:g}" for lr in rates)
    return {lr: parent / (f"lr_{lr:g}" if count[f"{lr:g}"] == 1 else f"lr_{lr!r}") for lr in rates}


def made(make_model: Callable[[], Any], earlier: nn.Module | None) -> nn.Module:
    """A fresh model.

    Raises:
        BadInput: it is none, or that of the run before.
    """
    model = make_model()
    if not isinstance(model, nn.Module):
        raise BadInput(f"make_model returned {kind(model)}; it has to return a torch.nn.Module")
    if model is earlier:
        raise BadInput("make_model returned the same model twice, which the first run has trained; it has to make a fresh one")
    return model


def batches_of(data: Callable[[], Any]) -> Iterable[Any]:
    """The batches of one run.

    Raises:
        BadInput: there is nothing to iterate over.
    """
    batches: Iterable[Any] = data()
    try:
        iter(batches)
    except TypeError as error:
        raise BadInput(f"data() returned {kind(batches)}; it has to return an iterator over batches") from error
    return batches


def pair(batch: Any) -> tuple[Any, Tensor]:
    """Inputs and targets.

    Raises:
        BadInput: a batch is something else.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise BadInput(f"a batch is {kind(batch)}, and the default loss takes pairs (inputs, targets); give loss=, a function of model and batch")
    return batch[0], batch[1]


def scalar(value: Any) -> Tensor:
    """A loss to go backward from.

    Raises:
        BadInput: it is something else.
    """
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) and value.numel() != 1 else kind(value)
        raise BadInput(f"loss returned {what}; it has to return the mean loss as a tensor of one number, with its graph")
    return value
