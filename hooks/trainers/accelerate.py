"""A lens in a loop on Hugging Face Accelerate.

Two lines of the loop are ours::

    from stabilitylens.hooks.trainers.accelerate import attach

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with attach(accelerator, model, optimizer, "runs/gpt") as lens:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                ...                                   # clip, optimizer.step(), optimizer.zero_grad() as ever
            if accelerator.sync_gradients:
                lens.step()
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stabilitylens.hooks.attaching import attach as attach_lens
from stabilitylens.hooks.lens import Lens

Backward = Callable[..., None]


def watched(plain: Backward, note: Callable[[Any, Any], None], ready: Callable[[Any], None]) -> Backward:
    """``Accelerator.backward``, told of: each loss before it, and the end of a step's last one.

    Right after that one the gradients are summed over micro-batches and processes, and nobody has clipped them yet.

    Args:
        plain: the function itself, called as ever.
        note: called with the accelerator and the loss.
        ready: called with the accelerator when the gradients are complete.
    """

    @functools.wraps(plain)
    def backward(accelerator: Any, loss: Any, **kwargs: Any) -> None:
        note(accelerator, loss)
        plain(accelerator, loss, **kwargs)
        if accelerator.sync_gradients:
            ready(accelerator)

    return backward


def attach(
    accelerator: Any, model: nn.Module, optimizers: Optimizer | Iterable[Optimizer], logdir: str | Path, **options: Any
) -> Lens:
    """Observe a model that Accelerate has prepared; losses and gradients are read from ``accelerator.backward``.

    Args:
        accelerator: the ``accelerate.Accelerator``. Its ``backward`` is replaced by one that does the same and tells
            the lens, until the lens is closed.
        model, optimizers: as ``accelerator.prepare`` gave them back.
        logdir, options: as for :func:`stabilitylens.attach`.

    Returns:
        The lens. Call ``lens.step()`` where ``accelerator.sync_gradients`` says that a step has ended.

    Raises:
        BadInput: as :func:`stabilitylens.attach` does.
    """
    lens = attach_lens(model, optimizers, logdir, **{"scaler": accelerator.scaler} | options)

    def note(_: Any, loss: Any) -> None:
        lens.micro_step(loss)

    def ready(_: Any) -> None:
        lens.grads_ready()

    accelerator.backward = types.MethodType(watched(type(accelerator).backward, note, ready), accelerator)
    lens.on_close(lambda: vars(accelerator).pop("backward", None))
    return lens
