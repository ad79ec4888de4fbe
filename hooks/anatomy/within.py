"""A model that can't be run itself, as one that only has a training step: what holds its blocks is read instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from stabilitylens.anatomy import Anatomy
from stabilitylens.hooks.anatomy.blocks import find_blocks
from stabilitylens.hooks.names import canonical_names


def holder_of_blocks(model: nn.Module) -> tuple[str, nn.Module] | None:
    """The outermost part with a forward that holds every block, with its canonical name; None where only the model does."""
    blocks = {module for _, module in find_blocks(model)}
    names = canonical_names(model)
    parts = [(names[path], part) for path, part in model.named_modules() if names[path] and part not in blocks]
    runs = (found for found in parts if type(found[1]).forward is not nn.Module.forward)
    return next((found for found in runs if blocks and blocks <= set(found[1].modules())), None)


def from_within(model: nn.Module, problem: str, read: Callable[[nn.Module], Anatomy]) -> Anatomy | None:
    """The anatomy of what holds a model's blocks, by the names that the model has for them; None where it can't be run either.

    Args:
        model: the model.
        problem: why it can't be run itself.
        read: reads an anatomy.
    """
    found = holder_of_blocks(model)
    if found is None:
        return None
    name, part = found
    anatomy = read(part)
    if not (anatomy.sub_layers or anatomy.attention_calls):
        return None
    # a norm after the blocks, and a table before them, may be outside
    doubtful = ("final_norm",) if not anatomy.final_norm else ()
    return replace(
        anatomy,
        n_parameters=sum(p.numel() for p in model.parameters()),
        layers=tuple(_under(name, layer) for layer in anatomy.layers),
        sub_layers=tuple(replace(sub, module=_under(name, sub.module)) for sub in anatomy.sub_layers),
        attention_calls=tuple(replace(call, module=_under(name, call.module)) for call in anatomy.attention_calls),
        reads_tokens=anatomy.reads_tokens or None,
        uncertain=tuple(dict.fromkeys((*anatomy.uncertain, *doubtful))),
        notes=(*anatomy.notes, f"read from {name} alone, for the model could not be run: {problem}"),
    )


def _under(name: str, inner: str) -> str:
    return f"{name}.{inner}" if inner else name
