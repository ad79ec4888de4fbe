"""Trainings of Hugging Face's and Lightning's trainers are dumped, and run again in a plain step."""

from __future__ import annotations

import pytest
import torch
from test_trainers_huggingface import fit, gpt2
from torch import nn
from training import Decoder, tokens
from transformers import TrainerCallback

import stabilitylens as sl
from stabilitylens.hooks.trainers.huggingface import LensCallback


class Dumping(TrainerCallback):
    """Dumps after the last step, before the trainer closes the lens."""

    def __init__(self, lens):
        self.lens = lens

    def on_step_end(self, args, state, control, **_):
        if state.global_step == state.max_steps:
            self.lens.lens.dump()


def test_hugging_face(tmp_path):
    lens = LensCallback(tmp_path / "run", blackbox=sl.BlackBox(snapshot_every=3))
    fit(tmp_path, observe=False, callbacks=[lens, Dumping(lens)], max_steps=9)

    def step(model, optimizer, batches):
        (batch,) = batches
        loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = gpt2().train()
    decayed = [p for n, p in model.named_parameters() if p.dim() > 1]
    groups = [{"params": decayed}, {"params": [p for p in model.parameters() if p.dim() == 1]}]
    found = sl.replay(tmp_path / "run", model, torch.optim.AdamW(groups), step, samples=False)
    assert found.step == 9 and len(found.losses) >= 5
    assert found.exact, found.difference


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from stabilitylens.hooks.trainers.lightning import LensCallback as Callback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.decoder = Decoder()

        def training_step(self, batch, _index):
            return self.decoder(batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    class Dump(lightning.Callback):
        def on_train_end(self, trainer, module):
            callback.lens.dump()

    torch.manual_seed(0)
    callback = Callback(tmp_path / "run", blackbox=sl.BlackBox(snapshot_every=3))
    trainer = lightning.Trainer(
        max_steps=8, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Dump(), callback],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader([tokens(1)[0] for _ in range(16)], batch_size=2))

    def step(module, optimizer, batches):
        (batch,) = batches
        loss = module.training_step(batch, 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    module = Module()
    found = sl.replay(tmp_path / "run", module, module.configure_optimizers(), step, samples=False)
    assert found.step == 8 and found.exact, found.difference
