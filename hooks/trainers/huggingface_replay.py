"""A step of the Trainer of Hugging Face transformers, for the replay of an incident.

A trainer that is built as for the training brings its loss, its precision and its clipping::

    from stabilitylens.hooks.trainers.huggingface_replay import replay_step

    trainer = Trainer(model, args, train_dataset=data)     # as for the training; it trains nothing here
    sl.replay("runs/gpt", model, trainer.create_optimizer(), replay_step(trainer))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.rerun import StepFunction

ITEMS = "num_items_in_batch"


def replay_step(trainer: Trainer) -> StepFunction:
    """One optimizer step as this trainer does it, for :func:`stabilitylens.replay` and :func:`stabilitylens.counterfactuals`.

    The loss of each micro-batch is made and divided by the trainer's own ``training_step``, under the precision of its
    arguments; then gradients are clipped at ``max_grad_norm``. Learning rates are put back by the replay.

    Args:
        trainer: built as for the training, with its arguments, collator and loss; neither its data nor its callbacks are used.

    Returns:
        ``step_fn(model, optimizer, batches)``, which returns the step's loss, a scalar tensor.

    Raises:
        BadInput: when it is called, where the micro-batches lack the labels from which this trainer makes its loss.
    """
    prepared: list[nn.Module] = []

    def step(model: nn.Module, optimizer: Any, batches: list[dict[str, Any]]) -> Tensor:
        if not any(model is known for known in prepared):
            trainer.accelerator.prepare_model(model)
            prepared.append(model)
        trainer.current_gradient_accumulation_steps = len(batches)
        losses = [_backward(trainer, model, dict(batch)) for batch in batches]
        _update(trainer, model, optimizer)
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    return step


def _backward(trainer: Trainer, model: nn.Module, batch: dict[str, Any]) -> Tensor:
    if "labels" not in batch and (trainer.label_smoother is not None or trainer.compute_loss_func is not None):
        raise BadInput(
            "the trainer makes its loss from labels that the model was not called with, so no batch of the incident has them: "
            "give lens.batch() the whole batch in the training, or write a step_fn that makes the loss"
        )
    return trainer.training_step(model, batch, batch.pop(ITEMS, None))


def _update(trainer: Trainer, model: nn.Module, optimizer: Any) -> None:
    scaler, limit = trainer.accelerator.scaler, trainer.args.max_grad_norm
    if scaler is not None:
        scaler.unscale_(optimizer)
    if limit:
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
