"""Trainers that own the loop, each on a process of several that train together; bare and observed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from training import VOCABULARY, gpt2, loss_of

STEPS = 3


def rows() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, VOCABULARY, (12,), generator=generator) for _ in range(32)]


def as_launched(rank: int) -> None:
    """What torchrun sets, which the trainers look for."""
    size = str(dist.get_world_size())
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0", TORCHELASTIC_RUN_ID="test",
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", ACCELERATE_USE_CPU="true",
    )  # fmt: skip


def huggingface(folder: Path | None, out: Path) -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments, set_seed

    from stabilitylens.hooks.trainers.huggingface import LensCallback

    losses: list[float] = []

    class Watching(Trainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            losses.append(loss.item())
            return loss

    set_seed(0)
    options = TrainingArguments(
        output_dir=str(out), max_steps=STEPS, per_device_train_batch_size=2, learning_rate=1e-2, max_grad_norm=0.5, report_to="none",
        disable_tqdm=True, use_cpu=True, save_strategy="no", ddp_find_unused_parameters=False,
    )  # fmt: skip
    data = [{"input_ids": x, "labels": x} for x in rows()]
    trainer = Watching(gpt2(), options, train_dataset=data, callbacks=[LensCallback(folder, every=1)] if folder else [])
    assert options.world_size == 2
    trainer.train()
    return {"losses": losses, "state": [p.detach().clone() for p in trainer.model.parameters()]}


def lightning(folder: Path | None, out: Path) -> dict[str, Any]:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy
    from torch.utils.data import DataLoader

    from stabilitylens.hooks.trainers.lightning import LensCallback

    losses: list[float] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = gpt2()

        def training_step(self, batch: Tensor, _index: int) -> Tensor:
            loss = loss_of(self.net, batch)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    pl.seed_everything(0, verbose=False)
    module = Module()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), gradient_clip_val=0.5,
        default_root_dir=out, callbacks=[LensCallback(folder, every=1)] if folder else [], **quiet,
    )  # fmt: skip
    assert trainer.world_size == 2
    trainer.fit(module, DataLoader(torch.stack(rows()), 2))
    return {"losses": losses, "state": [p.detach().clone() for p in module.parameters()]}


def on_each_rank(rank: int, folder: str, kinds: list[str]) -> dict[str, tuple[dict[str, Any], ...]]:
    """Of each trainer: bare, bare again, observed."""
    as_launched(rank)
    out = {}
    for kind in kinds:
        train, place = globals()[kind], Path(folder)
        out[kind] = tuple(train(run, place / "out") for run in (None, None, place / kind))
    return out
