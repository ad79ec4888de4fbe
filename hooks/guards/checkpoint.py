from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from stabilitylens.hooks.distributed import distributed
from stabilitylens.hooks.guards._action import Alarm, action


@action("checkpoint", takes=("folder",))
def checkpoint(alarm: Alarm) -> str:
    """Save model and optimizers: as they are before the update where the trouble can be seen by then, else after it.

    ``checkpoints/step_….pt`` in the run's folder, or in ``folder=``, is a dictionary of ``step``, ``model`` and ``optimizers``
    (state dicts), for ``torch.load(weights_only=True)``. Of several processes each writes its part with
    ``torch.distributed.checkpoint``, into a folder of that name.
    """
    folder = Path(alarm.options.get("folder") or alarm.lens.logdir / "checkpoints")
    path = folder / f"step_{alarm.step}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    model, optimizers = alarm.lens.subject.model, alarm.lens.optimizers
    if distributed() is None:
        _save(path, alarm.step, model, optimizers)
    else:
        _save_together(path, alarm.step, model, optimizers)
    when = "before the update" if alarm.optimizer is not None else "after the update"
    return f"saved {path}, as it is {when}"


def _save(path: Path, step: int, model: nn.Module, optimizers: list[Optimizer]) -> None:
    partial = path.with_suffix(".partial")
    torch.save({"step": step, "model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}, partial)
    os.replace(partial, path)


def _save_together(path: Path, step: int, model: nn.Module, optimizers: list[Optimizer]) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save

    weights, states = get_state_dict(model, optimizers)
    save({"step": step, "model": weights, "optimizers": states}, checkpoint_id=str(path))
