"""Lightning's real trainer with the callback: the step's own loss, gradients before clipping, same weights."""

from __future__ import annotations

import logging

import pytest
import torch
from loops import grad_norm, norm
from torch.utils.data import DataLoader
from training import Decoder, loss_of, tokens

import stabilitylens as sl

lightning = pytest.importorskip("lightning.pytorch")
from stabilitylens.hooks.trainers.lightning import LensCallback  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:lightning", "ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")


class Module(lightning.LightningModule):
    """Trains a decoder; keeps by hand what each loss and each gradient was."""

    def __init__(self):
        super().__init__()
        self.decoder, self.losses, self.norms = Decoder(), [], []

    def training_step(self, batch, _index):
        loss = loss_of(self.decoder, batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _index):
        loss_of(self.decoder, batch)

    def on_before_optimizer_step(self, _optimizer):
        self.norms.append(grad_norm(self.decoder))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class WithoutDropout(Module):
    """Draws no random numbers, of which a validation takes one."""

    def __init__(self):
        super().__init__()
        self.decoder = Decoder(dropout=0.0)


class TakingTurns(Module):
    """Two optimizers by hand, each with a backward of its own."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _index):
        squares = 0.0
        for optimizer, block in zip(self.optimizers(), self.decoder.blocks, strict=False):
            loss = loss_of(self.decoder, batch)
            self.decoder.zero_grad()
            self.manual_backward(loss)
            squares += norm(p.grad for p in block.parameters()) ** 2
            optimizer.step()
        self.norms.append(squares**0.5)
        self.losses.append(loss.item())
        return {"loss": loss}

    def on_before_optimizer_step(self, _optimizer):
        pass

    def configure_optimizers(self):
        return [torch.optim.AdamW(block.parameters(), 1e-2) for block in self.decoder.blocks[:2]]


def fit(folder, observe=True, make=Module, resume=None, callbacks=(), **options):
    lightning.seed_everything(0, verbose=False)
    torch.manual_seed(0)
    module, data = make(), torch.cat([tokens() for _ in range(12)])
    loader = DataLoader(data, 2)
    lens = [LensCallback(folder / "run", every=1)] if observe else []
    defaults = {"max_steps": 6, "gradient_clip_val": 0.5, "enable_checkpointing": False}
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=[*lens, *callbacks], **defaults | options,
    )  # fmt: skip
    validation = DataLoader(data[:4], 2) if options.get("val_check_interval") else None
    trainer.fit(module, loader, validation, ckpt_path=resume, weights_only=False)
    return module


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_record_is_the_steps_own_and_the_weights_are_the_same(precision, accumulate, tmp_path):
    def options():
        if precision != "16-mixed":
            return {"precision": precision, "accumulate_grad_batches": accumulate}
        scaled = lightning.plugins.MixedPrecision(precision, "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**8))
        return {"plugins": [scaled], "accumulate_grad_batches": accumulate}

    bare, again = (fit(tmp_path / str(i), False, **options()) for i in range(2))
    assert all(map(torch.equal, weights(bare), weights(again)))
    module = fit(tmp_path, **options())
    assert all(map(torch.equal, weights(bare), weights(module)))
    run = sl.load(tmp_path / "run")
    losses = torch.tensor(module.losses, dtype=torch.float64).view(6, accumulate).mean(1)
    assert run["loss"].steps.tolist() == list(range(1, 7))
    assert run["loss"].values == pytest.approx(losses.tolist(), rel=1e-6)
    assert run["grad_norm"].values == pytest.approx(module.norms, rel=1e-5)
    assert run["grad_norm_clipped/layer"].values.max() <= 0.5 + 1e-6
    assert run["lr"].values == pytest.approx([5e-3, 7.5e-3, 1e-2, 1e-2, 1e-2, 1e-2])
    assert run["max_attn_logit"].values.shape == (6, 3, 4)
    assert "loss_scale" in run if precision == "16-mixed" else "loss_scale" not in run


def test_optimizers_stepped_by_hand_are_one_step_a_batch(tmp_path):
    options = {"make": TakingTurns, "max_steps": 8, "gradient_clip_val": None}
    bare = fit(tmp_path / "bare", False, **options)
    module = fit(tmp_path, **options)
    assert all(map(torch.equal, weights(bare), weights(module)))
    run = sl.load(tmp_path / "run")
    assert run["loss"].values == pytest.approx(module.losses, rel=1e-6)
    assert run["grad_norm"].values == pytest.approx(module.norms, rel=1e-5)


def test_resuming_from_a_checkpoint_goes_on_with_the_same_run(tmp_path):
    def checkpoints():
        return lightning.callbacks.ModelCheckpoint(tmp_path / "kept", every_n_train_steps=4, save_top_k=-1, filename="{step}")

    fit(tmp_path / "whole", max_epochs=1)
    fit(tmp_path, max_epochs=1, enable_checkpointing=True, callbacks=[checkpoints()])
    module = fit(
        tmp_path, max_epochs=1, enable_checkpointing=True, callbacks=[checkpoints()], resume=tmp_path / "kept" / "step=4.ckpt"
    )
    assert len(module.losses) == 2
    run, whole = sl.load(tmp_path / "run"), sl.load(tmp_path / "whole" / "run")
    assert run["loss"].steps.tolist() == whole["loss"].steps.tolist() == list(range(1, 7))
    assert run["loss"].values[-2:] == pytest.approx(module.losses)


def test_validation_in_between_is_not_in_the_record(tmp_path):
    fit(tmp_path / "a", make=WithoutDropout)
    fit(tmp_path / "b", make=WithoutDropout, val_check_interval=1)
    clean, validated = sl.load(tmp_path / "a" / "run"), sl.load(tmp_path / "b" / "run")
    for name in ("loss", "resid_rms", "max_attn_logit", "log_z"):
        assert clean[name].values.tolist() == validated[name].values.tolist(), name


def test_an_exception_closes_the_lens(tmp_path):
    class Failing(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 3:
                raise RuntimeError("in the loop")

    lens = LensCallback(tmp_path / "run", every=1)
    modules = []

    def make():
        modules.append(Module())
        return modules[-1]

    with pytest.raises(RuntimeError, match="in the loop"):
        fit(tmp_path, observe=False, make=make, callbacks=[lens, Failing()])
    assert lens.lens is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules[0].modules())
    assert sl.load(tmp_path / "run")["loss"].steps.tolist() == [1, 2, 3]
