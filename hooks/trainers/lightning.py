"""A lens for the Trainer of Lightning.

One line does it::

    from stabilitylens.hooks.trainers.lightning import LensCallback

    trainer = lightning.pytorch.Trainer(callbacks=[LensCallback("runs/gpt")])
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from stabilitylens.hooks.anatomy.within import holder_of_blocks
from stabilitylens.hooks.attaching import attach
from stabilitylens.hooks.guards import Act
from stabilitylens.hooks.lens import Lens


class LensCallback(Callback):
    """Observes the module while the trainer fits it, with automatic or manual optimization.

    Args:
        logdir: the run's folder; the trainer's ``default_root_dir`` where it is left out.
        guards: actions by kind of trouble, as ``{"nonfinite": "skip"}``; see :meth:`stabilitylens.Lens.on`.
        options: as for :func:`stabilitylens.attach`, e.g. ``every=100``.

    Attributes:
        lens: the lens, while the trainer fits.
    """

    def __init__(self, logdir: str | Path | None = None, *, guards: Mapping[str, str | Act] | None = None, **options: Any) -> None:
        self.lens: Lens | None = None
        self._logdir, self._guards, self._options = logdir, dict(guards or {}), options
        self._resumed: dict[str, Any] = {}
        self._steps = 0
        self._forward = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach, and go on counting where a checkpoint is resumed."""
        self._close()
        steps = trainer.estimated_stepping_batches
        given: dict[str, Any] = {
            "scaler": getattr(trainer.precision_plugin, "scaler", None),
            "total_steps": int(steps) if steps < float("inf") else None,
        }
        logdir = self._logdir or trainer.default_root_dir
        self.lens = attach(pl_module, trainer.optimizers, logdir, **given | self._options)
        for kind, action in self._guards.items():
            self.lens.on(kind, action)
        self._steps = trainer.global_step
        if self._resumed:
            self.lens.load_state_dict(self._resumed)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keep the whole batch, of which the module's forward may see a part; a module without a forward runs its parts in its step."""
        if self.lens is not None and self.lens.box is not None:
            self.lens.batch(batch)
        if self.lens is not None and type(pl_module).forward is LightningModule.forward and holder_of_blocks(pl_module) is None:
            self._forward.enter_context(self.lens.forward())

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """The forward is over."""
        self._forward.close()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Read the gradients: they are complete and unscaled, and not clipped yet."""
        if self.lens is not None:
            self.lens.grads_ready(optimizer if len(trainer.optimizers) > 1 else None)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the batch's loss, and end the lens's step where the optimizer has taken one."""
        self._forward.close()
        if self.lens is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self.lens.micro_step(loss * parts if parts > 1 else loss)
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self.lens.step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the lens."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the lens."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """Goes into the trainer's checkpoints."""
        return self.lens.state_dict() if self.lens is not None else self._resumed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes out of a checkpoint before the training starts."""
        self._resumed = dict(state_dict)

    def _close(self) -> None:
        self._forward.close()
        if self.lens is not None:
            self._resumed = {}
            self.lens.close()
        self.lens = None
