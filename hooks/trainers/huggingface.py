"""A lens for the Trainer of Hugging Face transformers, and for TRL's trainers, which are made from it.

One line does it::

    from stabilitylens.hooks.trainers.huggingface import LensCallback

    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[LensCallback("runs/gpt")])
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import TrainerCallback

from stabilitylens.hooks.attaching import attach
from stabilitylens.hooks.guards import Act
from stabilitylens.hooks.lens import Lens
from stabilitylens.hooks.trainers.accelerate import watched


class LensCallback(TrainerCallback):
    """Observes the model while the trainer trains it.

    The trainer tells its callbacks neither the loss of a step, but a mean that leaves NaN out
    (``logging_nan_inf_filter``), nor anything between backward and clipping. Both are read where the trainer hands
    the loss to Accelerate; for that, ``Accelerator.backward`` is replaced by one that does the same and tells this
    callback, from the beginning of each step to its update.

    Args:
        logdir: the run's folder; the trainer's ``output_dir`` where it is left out.
        guards: actions by kind of trouble, as ``{"nonfinite": "skip"}``; see :meth:`stabilitylens.Lens.on`.
        options: as for :func:`stabilitylens.attach`, e.g. ``every=100``.

    Attributes:
        lens: the lens, while the trainer trains.
    """

    def __init__(self, logdir: str | Path | None = None, *, guards: Mapping[str, str | Act] | None = None, **options: Any) -> None:
        self.lens: Lens | None = None
        self._logdir, self._guards, self._options = logdir, dict(guards or {}), options
        self._loss: Any = None
        self._optimizer: Any = None
        self._backward: Any = None
        self._plain = Accelerator.backward

    def on_train_begin(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        """Attach, and go on counting where a checkpoint is resumed."""
        self._close()
        model, self._optimizer = trainer["model"], trainer["optimizer"]
        given = {"scaler": getattr(self._optimizer, "scaler", None), "total_steps": state.max_steps}
        self.lens = attach(model, self._optimizer, self._logdir or args.output_dir, **given | self._options)
        for kind, action in self._guards.items():
            self.lens.on(kind, action)
        if state.global_step:
            self.lens.load_state_dict({"step_number": state.global_step + 1})
        weakref.finalize(self, self.lens.close).atexit = False  # a trainer that raised never says that it has ended

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Listen to what is handed to Accelerate."""
        self._loss = None
        if self._backward is None:
            self._plain = Accelerator.backward
            self._backward = watched(self._plain, *_weak(self))
            Accelerator.backward = self._backward

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put everything back before the update."""
        self._stop_listening()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the lens's step."""
        if self.lens is not None:
            self.lens.step(self._loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the lens."""
        self._close()

    def _mine(self, accelerator: Any) -> bool:
        return any(o is self._optimizer for o in accelerator._optimizers)

    def _note(self, accelerator: Any, loss: Any) -> None:
        if self._mine(accelerator):  # the trainer has divided each micro-batch's loss already: they add up
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def _ready(self, accelerator: Any) -> None:
        if self.lens is not None and self._mine(accelerator):
            self.lens.grads_ready()

    def _stop_listening(self) -> None:
        if self._backward is not None and Accelerator.backward is self._backward:
            Accelerator.backward = self._plain
        self._backward = None

    def _close(self) -> None:
        self._stop_listening()
        if self.lens is not None:
            self.lens.close()
        self.lens = None


def _weak(callback: LensCallback) -> tuple[Callable[[Any, Any], None], Callable[[Any], None]]:
    """What is to be told, without keeping the callback alive: an interrupted training leaves its listening on."""
    me = weakref.ref(callback)

    def note(accelerator: Any, loss: Any) -> None:
        if (found := me()) is not None:
            found._note(accelerator, loss)

    def ready(accelerator: Any) -> None:
        if (found := me()) is not None:
            found._ready(accelerator)

    return note, ready
