"""Trainings of Hugging Face's and Lightning's trainers are dumped, and run again in a plain step."""

from __future__ import annotations

import pytest
import torch
from test_trainers_huggingface import arguments, fit, gpt2
from torch import nn
from training import Decoder, llama, tokens
from transformers import Trainer, TrainerCallback

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.trainers.huggingface import LensCallback
from stabilitylens.hooks.trainers.huggingface_replay import replay_step


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


class Scaling(Trainer):
    """Scales its losses, as fp16 on a GPU has it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)


def again(folder, make=gpt2, kind=Trainer, **options):
    """What a trainer of today makes of an incident of one of yesterday."""
    trainer = kind(make(), arguments(folder, **options), train_dataset=[])
    return sl.replay(folder / "run", trainer.model, trainer.create_optimizer(), replay_step(trainer))


def dumped(folder, **options):
    lens = LensCallback(folder / "run", blackbox=sl.BlackBox(snapshot_every=3))
    fit(folder, observe=False, callbacks=[lens, Dumping(lens)], max_steps=9, **options)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"make": llama},
        {"gradient_accumulation_steps": 3},
        {"bf16": True, "gradient_accumulation_steps": 2},
        {"kind": Scaling, "max_grad_norm": 0.0},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_trainers_own_step_is_replayed(options, tmp_path):
    found = again(dumped(tmp_path, **options), **options)
    assert found.step == 9 and len(found.losses) >= 5
    assert found.exact, found.difference
    assert found.samples is not None


def test_labels_that_the_model_never_saw_are_said_to_be_missing(tmp_path):
    options = {"label_smoothing_factor": 0.1}
    with pytest.raises(BadInput, match=r"labels that the model was not called with.*lens\.batch\(\)"):
        again(dumped(tmp_path, **options), **options)


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


def lightning_trained(module, folder, data, accumulate=1, **options):
    """A module that Lightning has trained and dumped."""
    lightning = pytest.importorskip("lightning.pytorch")
    from stabilitylens.hooks.trainers.lightning import LensCallback as Callback

    class Dump(lightning.Callback):
        def on_train_end(self, trainer, module):
            callback.lens.dump()

    callback = Callback(folder / "run", **options)
    trainer = lightning.Trainer(
        max_steps=8, accumulate_grad_batches=accumulate, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Dump(), callback],
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
    return module


def pairs_module(poisoned=-1):
    """A module that has no forward, and that shows its parts only a half of each batch."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.parts = nn.Sequential(nn.Embedding(64, 16), nn.Dropout(0.1), nn.Linear(16, 64))

        def training_step(self, batch, index):
            words, targets = batch
            loss = nn.functional.cross_entropy(self.parts(words).flatten(0, 1), targets.flatten())
            return loss * float("nan") if index == poisoned else loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    return Module()


def pairs():
    words = torch.randint(64, (16, 8), generator=torch.Generator().manual_seed(0))
    return list(zip(words, words.flip(1), strict=True))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_of_lightning_the_whole_batch_is_kept_and_a_backward_in_a_closure_is_not_taken_for_an_addition(accumulate, tmp_path):
    lightning_trained(pairs_module(), tmp_path, pairs(), accumulate, blackbox=sl.BlackBox(snapshot_every=3))

    def step(module, optimizer, batches):
        losses = []
        for batch in batches:
            losses.append(module.training_step(batch, 0))
            (losses[-1] / len(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        return losses

    module = pairs_module()
    found = sl.replay(tmp_path / "run", module, module.configure_optimizers(), step)
    assert len(found.losses) > 3 and found.exact, found.difference
    assert found.samples is not None and len(found.samples.rows) == 2 * accumulate


def guard_events(folder):
    return [event.text for event in sl.load(folder).events if event.kind == "guard"]


def test_guards_of_a_lightning_trainer(tmp_path):
    module = lightning_trained(pairs_module(poisoned=3), tmp_path, pairs(), guards={"nonfinite": "skip"})
    assert all(p.isfinite().all() for p in module.parameters())
    assert len(guard_events(tmp_path / "run")) == 1


class Poisoned(Trainer):
    """Makes one step's loss NaN."""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss * float("nan") if self.state.global_step == 3 else loss


def test_guards_of_a_hugging_face_trainer(tmp_path):
    trainer = fit(tmp_path, observe=False, kind=Poisoned, callbacks=[LensCallback(tmp_path / "run", guards={"nonfinite": "skip"})], max_steps=6)
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert len(guard_events(tmp_path / "run")) == 1
