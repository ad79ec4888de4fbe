"""Other tools in the same loop, where they are installed: trainscope and torch-module-monitor, as their manuals show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.loops import Attach


class TrainScope:
    """trainscope with its defaults."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, logdir: Path) -> None:
        from trainscope import TrainScope as Scope
        from trainscope import TrainScopeConfig

        self.scope: Any = Scope(model, optimizer, config=TrainScopeConfig(run_dir=str(logdir))).attach()
        self.count = 0

    def before_clipping(self, loss: Tensor) -> None:
        """Its step comes between backward and the update."""
        self.scope.step(loss.item(), batch_index=self.count)
        self.count += 1

    def after_update(self, loss: Tensor) -> None:
        """Nothing."""

    def close(self) -> None:
        """Detach."""
        self.scope.detach()


class ModuleMonitor:
    """torch-module-monitor with three metrics, every tenth step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, logdir: Path) -> None:
        from torch_module_monitor import ModuleMonitor as Monitor

        self.monitor: Any = Monitor(monitor_step_fn=lambda step: step % 10 == 0)
        self.monitor.set_module(model)
        self.monitor.add_activation_metric("rms", lambda x: x.square().mean().sqrt())
        self.monitor.add_parameter_metric("norm", lambda x: x.norm())
        self.monitor.add_gradient_metric("norm", lambda x: x.norm())
        self.count = 0
        self.monitor.begin_step(0)

    def before_clipping(self, loss: Tensor) -> None:
        """Its readings."""
        self.monitor.monitor_parameters()
        self.monitor.monitor_gradients()

    def after_update(self, loss: Tensor) -> None:
        """Fetch what was read, and begin the next step."""
        self.monitor.end_step()
        if self.monitor.is_step_monitored(self.count):
            self.monitor.get_step_metrics()
        self.count += 1
        self.monitor.begin_step(self.count)

    def close(self) -> None:
        """Nothing to take back."""


def installed() -> dict[str, Attach]:
    """The peers at hand by name."""
    known: dict[str, Attach] = {"trainscope": TrainScope, "torch_module_monitor": ModuleMonitor}
    return {name: attach for name, attach in known.items() if importlib.util.find_spec(name)}
