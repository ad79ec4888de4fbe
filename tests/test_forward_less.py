"""Models without a forward of their own: one that only has a training step, and one whose parts the loop calls itself."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from loops import observed
from torch import nn
from torch.utils.data import DataLoader
from training import VOCABULARY, Block, tokens

import stabilitylens as sl

SHAPES = {"resid_rms": 3, "max_attn_logit": 3, "resid_grad_norm": 3, "norm_gain": 7}


class Parts(nn.Module):
    """The parts of a decoder, which somebody else calls."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, 32), nn.LayerNorm(32)
        self.blocks = nn.ModuleList(Block(32, 4, 0.0) for _ in range(3))
        self.head = nn.Linear(32, VOCABULARY, bias=False)


class Whole(Parts):
    def forward(self, x):
        return run_parts(self, x)


def run_parts(parts, x):
    h = parts.embedding(x)
    for block in parts.blocks:
        h = block(h)
    return parts.head(parts.norm(h))


def loss_of(logits, x):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def steps(model, attach, forward):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lens, losses = attach(model, optimizer), []
    for _ in range(3):
        x = tokens()
        loss = loss_of(forward(lens, model, x), x)
        loss.backward()
        lens.grads_ready()
        optimizer.step()
        optimizer.zero_grad()
        lens.step(loss)
        losses.append(loss.detach())
    return model, losses


def inside(lens, model, x):
    if not isinstance(lens, sl.Lens):
        return run_parts(model, x)
    with lens.forward():
        return run_parts(model, x)


def test_a_loop_that_calls_the_parts_says_where_a_forward_begins_and_ends(tmp_path):
    run = observed(lambda attach: steps(Parts(), attach, inside), tmp_path / "parts")
    whole = observed(lambda attach: steps(Whole(), attach, lambda _lens, model, x: model(x)), tmp_path / "whole")
    for name, count in SHAPES.items():
        assert run[name].values.shape[1] == count
        assert run[name].values.tolist() == whole[name].values.tolist(), name
    assert run["log_z"].values.tolist() == whole["log_z"].values.tolist()
    assert "log_z" not in dict(run.header.coverage.not_observed)


def test_a_model_inside_such_a_stretch_is_seen_once(tmp_path):
    def called(lens, model, x):
        if not isinstance(lens, sl.Lens):
            return model(x)
        with lens.forward():
            return model(x)

    run = observed(lambda attach: steps(Whole(), attach, called), tmp_path)
    assert run["resid_rms"].values.shape == (3, 3) and run["max_attn_logit"].values.shape == (3, 3, 4)


def test_parts_that_nobody_holds_together_are_named_with_what_to_do(tmp_path):
    run = observed(lambda attach: steps(Parts(), attach, lambda _lens, model, x: run_parts(model, x)), tmp_path)
    reasons = dict(run.header.coverage.not_observed)
    assert "lens.forward()" in reasons["resid_rms"]
    assert "give the model a forward" in reasons["anatomy"] and "audit(model, example_inputs)" in reasons["anatomy"]


lightning = pytest.importorskip("lightning.pytorch")
from stabilitylens.hooks.trainers.lightning import LensCallback  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Training(lightning.LightningModule):
    def training_step(self, batch, _index):
        return loss_of(self.run(batch), batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Inner(Training):
    """Has the model as a part."""

    def __init__(self):
        super().__init__()
        self.net = Whole()

    def run(self, x):
        return self.net(x)


class Flat(Training):
    """Is the model."""

    def __init__(self):
        super().__init__()
        parts = Parts()
        self.embedding, self.blocks, self.norm, self.head = parts.embedding, parts.blocks, parts.norm, parts.head

    def run(self, x):
        return run_parts(self, x)


def fit(kind, folder):
    torch.manual_seed(0)
    module = kind()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [LensCallback(folder, every=1)] if folder else []
    trainer = lightning.Trainer(max_steps=3, accelerator="cpu", callbacks=callbacks, **quiet)
    torch.manual_seed(1)
    trainer.fit(module, DataLoader(torch.randint(0, VOCABULARY, (16, 12)), 4))
    return list(module.state_dict().values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Inner, Flat])
def test_a_module_with_a_training_step_alone(kind, tmp_path):
    bare, again = fit(kind, None), fit(kind, None)
    assert all(map(torch.equal, bare, again)) and all(map(torch.equal, bare, fit(kind, tmp_path)))
    run = sl.load(tmp_path)
    for name, count in SHAPES.items():
        assert run[name].values.shape[:2] == (3, count), name
    anatomy, reasons = run.header.anatomy, dict(run.header.coverage.not_observed)
    if kind is Inner:
        assert (anatomy.norm_placement, anatomy.n_layers, anatomy.layers[0]) == ("pre", 3, "net.blocks.0")
        assert anatomy.attention_calls[0].module.startswith("net.blocks.0") and "read from net alone" in anatomy.notes[-1]
        assert "anatomy" not in reasons
    else:
        assert "give the model a forward" in reasons["anatomy"]
