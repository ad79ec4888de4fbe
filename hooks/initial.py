"""What a model does before training: one forward and backward of a copy of it, recorded as any step is."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils._pytree import tree_leaves

from stabilitylens.errors import BadInput
from stabilitylens.hooks.anatomy.blocks import find_blocks
from stabilitylens.hooks.anatomy.inputs import Call, candidates
from stabilitylens.hooks.anatomy.unchanged import unchanged
from stabilitylens.hooks.guard import Guard, LensWarning
from stabilitylens.hooks.lens import Lens
from stabilitylens.hooks.selection import selected
from stabilitylens.hooks.subject import Subject
from stabilitylens.recipe import Recipe
from stabilitylens.run import INITIAL, Run, load

Loss = Callable[[Any], Tensor]


def measure_initial(model: nn.Module, example_inputs: Any = None, loss: Loss | None = None) -> Run:
    """Run a copy of a model forward and backward once, and record what a lens sees of that.

    The model itself is not run; random state, and what the copy shares with it, is left as it was, and hooks that were put
    on it do not run. The copy is in eval mode, so that dropout plays no
    part, and its weights do not move.

    Args:
        model: a module with real weights.
        example_inputs: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments of its
            forward; made up from its configuration or its first layers where None.
        loss: from the forward's output to a scalar. Where None: the cross-entropy of the next token, if the output is
            logits over the entries of an embedding table; else the mean of the output along a random direction.

    Returns:
        A run of one sample whose ``format`` is ``initial``; its loss has no meaning beyond its gradient.

    Raises:
        stabilitylens.errors.BadInput: the model has no weights (meta device), nothing to train, cannot be copied, or does
            not run forward and backward on the inputs.
    """
    _check(model)
    twin = _copied(model).eval()
    # a copy still shares what is in the files of its classes, and hooks that are functions
    with unchanged(twin), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        call = _first_call(twin, example_inputs)
        _record(twin, call, loss or _default_loss(twin, call), Path(folder))
        run = load(folder)
    run.path, run.format = type(model).__name__, INITIAL
    return run


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"measure_initial needs a torch.nn.Module and was given {type(model).__name__}; pass the model")
    if any(p.is_meta for p in model.parameters()):
        raise BadInput("the model is on the meta device and has no weights to measure; build it with real weights")
    if not any(p.requires_grad for p in model.parameters()):
        raise BadInput("no parameter of the model takes a gradient, so there is nothing to measure; set requires_grad_()")


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise BadInput(f"the model cannot be copied ({type(error).__name__}: {_line(error)}); pass one that was just built") from error


def _first_call(model: nn.Module, example_inputs: Any) -> Call:
    """The first inputs that the model runs on."""
    problems = []
    for args, kwargs in candidates(model, example_inputs):
        try:
            with torch.no_grad():
                model(*args, **kwargs)
            return args, kwargs
        except Exception as error:
            problems.append(f"its forward raised {type(error).__name__}: {_line(error)}")
    why = problems[0] if problems else "no example inputs could be made up for its forward"
    raise BadInput(f"the model could not be measured: {why}; pass example_inputs that its forward takes")


def _record(model: nn.Module, call: Call, loss: Loss, folder: Path) -> None:
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    seen: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LensWarning)
        lens = Lens(
            Subject(model), [optimizer], folder, every=1, metrics=selected(None), scaler=None, recipe=Recipe(), anatomy=None,
            guard=Guard(),
        )  # attach would read the anatomy, which the caller has
        with lens, _entering_stream(model, seen):
            value = _backward(model, call, loss)
            lens.grads_ready()
            optimizer.step()
            lens.step(value, **({"embedding_rms": seen[0]} if seen else {}))


def _backward(model: nn.Module, call: Call, loss: Loss) -> Tensor:
    try:
        value = loss(model(*call[0], **call[1]))
        value.backward()
    except Exception as error:
        what = f"{type(error).__name__}: {_line(error)}"
        raise BadInput(f"the model could not be measured: its backward failed with {what}; pass a loss") from error
    return value.detach()


@contextmanager
def _entering_stream(model: nn.Module, seen: list[float]) -> Iterator[None]:
    """Note the RMS of what enters the first block."""

    def note(_module: nn.Module, args: Any, kwargs: Any) -> None:
        stream = _first_float((args, kwargs))
        if stream is not None:
            seen.append(float(stream.detach().double().square().mean().sqrt()))

    blocks = [module for name, module in find_blocks(model) if name]
    handles = [block.register_forward_pre_hook(note, with_kwargs=True) for block in blocks[:1]]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_float(values: Any, least: int = 2) -> Tensor | None:
    """The first tensor of numbers with at least that many dimensions."""
    leaves = tree_leaves(values)
    return next((x for x in leaves if isinstance(x, Tensor) and x.is_floating_point() and x.dim() >= least), None)


def _default_loss(model: nn.Module, call: Call) -> Loss:
    tables = {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)}
    tokens = next((x for x in tree_leaves(call) if isinstance(x, Tensor) and x.dtype == torch.long and x.dim() == 2), None)

    def loss(output: Any) -> Tensor:
        found = getattr(output, "logits", None)
        out = found if isinstance(found, Tensor) else _first_float(tuple(output.values()) if isinstance(output, dict) else output)
        if out is None:
            raise ValueError("its output has no tensor of numbers")
        if tokens is not None and out.dim() == 3 and out.shape[:2] == tokens.shape and out.shape[2] in tables:
            return F.cross_entropy(out[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        direction = torch.randn(out.shape[1:], generator=torch.Generator().manual_seed(0)).to(out)
        along: Tensor = (out * direction).flatten(1).sum(1).mean() / direction.numel() ** 0.5
        return along

    return loss


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
