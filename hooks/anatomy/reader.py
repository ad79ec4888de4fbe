"""The public call: run a model once and tell its anatomy."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from stabilitylens.anatomy import UNREAD, Anatomy
from stabilitylens.errors import BadInput
from stabilitylens.hooks.anatomy.assemble import assemble
from stabilitylens.hooks.anatomy.autograd_walk import walk
from stabilitylens.hooks.anatomy.blocks import find_blocks
from stabilitylens.hooks.anatomy.graph import Graph
from stabilitylens.hooks.anatomy.guess import GUESSES, guessing
from stabilitylens.hooks.anatomy.inputs import Call, candidates
from stabilitylens.hooks.anatomy.trace import trace
from stabilitylens.hooks.anatomy.unchanged import unchanged
from stabilitylens.hooks.anatomy.values import Values
from stabilitylens.hooks.anatomy.within import from_within

_CHECKED = (
    "norm_placement",
    "norm_kind",
    "qk_norm",
    "qk_norm_position",
    "parallel",
    "final_norm",
    "n_layers",
    "n_attention",
)
_WHAT_TO_PASS = "pass example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments of its forward"


def read_anatomy(model: nn.Module, example_inputs: Any = None) -> Anatomy:
    """Tell norm placement, QK-Norm, soft-caps and the rest from the dataflow of one forward, using no names.

    The model is run without gradients, in eval mode and without the hooks that were put on it, and left as it was: flags,
    attributes and the objects that they hold, weights, buffers, random states. Where autograd sees all of it, it is run a
    second time with gradients, and fields in which that reading differs are named in ``uncertain``. On the meta device
    nothing is computed and questions about values are answered with guesses.

    Args:
        model: any module; torch's data-parallel wrappers are looked through.
        example_inputs: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments of its
            forward; made up from its configuration or its first layers where None.

    Returns:
        The anatomy. Where the model could not be run its ``notes`` say why and what to pass.

    Raises:
        stabilitylens.errors.BadInput: ``model`` is not a ``torch.nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"read_anatomy needs a torch.nn.Module and was given {type(model).__name__}; pass the model")
    while isinstance(model, DataParallel | DistributedDataParallel):
        model = model.module
    with unchanged(model) as values, torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph, call, problem = _first_trace(model, example_inputs, values)
        second = _second_graph(model, graph, call, values)
    if graph is None:
        inner = from_within(model, problem, read_anatomy) if example_inputs is None else None
        return inner or _untraced(model, problem)
    try:
        return _checked(assemble(model, graph), model, second)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        return _untraced(model, f"its dataflow could not be read ({type(error).__name__}: {error})")


def _first_trace(model: nn.Module, example_inputs: Any, values: Values) -> tuple[Graph | None, Call, str]:
    """The first forward that runs and on what, or None and what the first failure was."""
    problems = []
    on_meta = any(p.is_meta for p in model.parameters())
    for args, kwargs in candidates(model, example_inputs):
        for modes in [(guessing(*guess),) for guess in GUESSES] if on_meta else [()]:
            try:
                return trace(model, args, kwargs, values, *modes), (args, kwargs), ""
            except Exception as error:
                problems.append(f"its forward raised {type(error).__name__}: {_first_line(error)}")
    return None, ((), {}), problems[0] if problems else "no example inputs could be made up for its forward"


def _second_graph(model: nn.Module, graph: Graph | None, call: Call, values: Values) -> Graph | None:
    """The forward as autograd sees it; what is hidden from the trace has been probed and is hidden from it too."""
    if graph is None or any(node.hidden for node in graph.nodes):
        return None
    try:
        return walk(model, *call, values)
    except Exception:  # a check that cannot be made says nothing
        return None


def _checked(anatomy: Anatomy, model: nn.Module, second: Graph | None) -> Anatomy:
    """Name the fields in which another way of reading the model disagrees."""
    if second is None:
        return anatomy
    other = assemble(model, second)
    doubtful = [name for name in _CHECKED if getattr(anatomy, name) != getattr(other, name)]
    return replace(anatomy, uncertain=tuple(dict.fromkeys([*anatomy.uncertain, *doubtful])))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _untraced(model: nn.Module, problem: str) -> Anatomy:
    layers = tuple(name for name, _ in find_blocks(model))
    return Anatomy(
        n_layers=len(layers) or None,
        n_parameters=sum(p.numel() for p in model.parameters()),
        layers=layers,
        notes=(f"{UNREAD}{problem}; {_WHAT_TO_PASS}",),
    )
