"""Models as people write, wrap, copy and save them, in a loop that must stay what it is."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loops import grad_norm, observed
from torch import Tensor, nn
from training import Block, Decoder, gpt2, llama, loss_of, tokens

import stabilitylens as sl


def simple(make, steps=3, loss=loss_of):
    """A plain loop over a model."""

    def loop(attach):
        model, losses = make(), []
        updates = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
        lens = attach(model, updates)
        for _ in range(steps):
            value = loss(model, tokens())
            value.backward()
            lens.grads_ready()
            updates.step()
            updates.zero_grad()
            lens.step(value)
            losses.append(value.detach())
        return model, losses

    return loop


class InPlace(nn.Module):
    """Changes what its modules returned right after they returned it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.blocks = nn.ModuleList(Block(32, 4, 0.0) for _ in range(2))
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        h = h + 0
        for block in self.blocks:
            y = block(h)
            y += h
            h = self.act(y)
        return F.cross_entropy(self.head(h).flatten(0, 1), x.flatten())


def test_what_is_changed_in_place_after_a_block_is_read_before_the_change(tmp_path):
    run = observed(simple(InPlace, steps=1), tmp_path)
    torch.manual_seed(0)
    twin, x, outputs = InPlace(), tokens(), []
    h = twin.embedding(x)
    for block in twin.blocks:
        y = block(h)
        y.retain_grad()
        outputs.append(y)
        h = torch.relu(y + h)
    F.cross_entropy(twin.head(h).flatten(0, 1), x.flatten()).backward()
    assert run["resid_rms"].values[0] == pytest.approx([y.square().mean().sqrt().item() for y in outputs], rel=1e-5)
    assert run["resid_grad_norm"].values[0] == pytest.approx([y.grad.norm().item() for y in outputs], rel=1e-5)


@dataclass
class Out:
    note: str
    hidden: Tensor


WRAPS = {
    "tuple": (lambda y: (y, None), lambda out: out[0]),
    "list": (lambda y: [None, y], lambda out: out[1]),
    "dict": (lambda y: {"x": y}, lambda out: out["x"]),
    "dataclass": (lambda y: Out("a", y), lambda out: out.hidden),
    "nested": (lambda y: ({"x": [y]},), lambda out: out[0]["x"][0]),
}


@pytest.mark.parametrize("how", WRAPS)
def test_blocks_that_return_containers(how, tmp_path):
    class Wrapped(Block):
        def forward(self, x):
            return WRAPS[how][0](super().forward(x))

    class Model(Decoder):
        def __init__(self):
            super().__init__(dropout=0.0)
            self.blocks = nn.ModuleList(Wrapped(32, 4, 0.0) for _ in range(3))

        def run(self, block, x):
            return WRAPS[how][1](block(x))

    run = observed(simple(Model), tmp_path)
    assert run["resid_rms"].values.shape == run["resid_grad_norm"].values.shape == (3, 3)
    assert np.isfinite(run["resid_grad_norm"].values).all()


def test_a_first_module_whose_input_needs_no_gradient(tmp_path, recwarn):
    run = observed(simple(Decoder), tmp_path)
    group = run["grad_norm/group"]
    assert group.values[:, group.labels["group"].index("embedding")].min() > 0
    assert not [w for w in recwarn if "grad_input" in str(w.message) or "hook" in str(w.message)]


def test_blocks_called_by_their_forward_are_named(tmp_path):
    class Direct(Decoder):
        def run(self, block, x):
            return block.forward(x)

    run = observed(simple(Direct), tmp_path)
    assert "resid_rms" not in run
    assert "__call__" in dict(run.header.coverage.not_observed)["resid_rms"]
    assert run["max_attn_logit"].values.shape == (3, 3, 4)


def test_one_block_of_three_called_by_its_forward(tmp_path):
    class Direct(Decoder):
        def run(self, block, x):
            return block.forward(x) if block is self.blocks[1] else block(x)

    run = observed(simple(Direct), tmp_path)
    assert np.isnan(run["resid_rms"].values).tolist() == [[False, True, False]] * 3
    assert "__call__" in dict(run.header.coverage.not_observed)["blocks.1"]


def test_a_model_called_by_its_forward(tmp_path):
    run = observed(simple(Decoder, loss=lambda model, x: model.forward(x)), tmp_path)
    assert "call the model itself" in dict(run.header.coverage.not_observed)["resid_rms"]
    assert run["grad_norm"].values.min() > 0


def test_a_model_without_attention(tmp_path):
    class Mixer(Decoder):
        def __init__(self):
            super().__init__(dropout=0.0)
            for block in self.blocks:
                block.attn = nn.Sequential(nn.Linear(32, 32), nn.Tanh())

    run = observed(simple(Mixer), tmp_path)
    assert "no attention call" in dict(run.header.coverage.not_observed)["max_attn_logit"]
    assert run["resid_rms"].values.shape == (3, 3)


def test_a_model_that_is_no_transformer_at_all(tmp_path):
    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 1))

    run = observed(simple(make, loss=lambda model, x: model(x.float()).square().mean()), tmp_path)
    assert run["grad_norm"].values.min() > 0


def test_frozen_parameters_are_not_observed_and_not_missed(tmp_path):
    def make():
        model = Decoder(dropout=0.0)
        model.embedding.requires_grad_(False)
        model.blocks[0].requires_grad_(False)
        return model

    run = observed(simple(make), tmp_path)
    assert np.isnan(run["grad_norm/layer"].values[:, 0]).all()
    assert np.isfinite(run["grad_norm/layer"].values[:, 1:]).all()
    seen, total = run.header.coverage.parameters
    assert seen == total
    assert np.isfinite(run["resid_rms"].values).all()


def test_low_rank_adapters(tmp_path):
    peft = pytest.importorskip("peft")

    def make():
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
        return peft.get_peft_model(llama(), config)

    run = observed(simple(make), tmp_path)
    assert run.header.labels["layer"] == tuple(f"model.layers.{i}" for i in range(3))
    assert run.header.coverage.parameters == (12, 12)
    assert np.isfinite(run["resid_grad_norm"].values).all()


def test_adapters_that_get_no_gradient_are_named(tmp_path):
    class Cut(Decoder):
        """Frozen but for adapters in the blocks and its head; reentrant checkpointing cuts the adapters off."""

        def __init__(self):
            super().__init__(dropout=0.0, recompute="reentrant")
            self.embedding.requires_grad_(False)

    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        run = observed(simple(Cut, steps=2), tmp_path)
    missing = dict(run.header.coverage.not_observed)
    assert all(f"blocks.{i}.up.weight" in missing for i in range(3))
    assert "head.weight" not in missing


def test_tied_weights_count_once(tmp_path):
    norms = []

    def loop(attach):
        model = gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        value = loss_of(model, tokens())
        value.backward()
        lens.grads_ready()
        norms.append(grad_norm(model))
        optimizer.step()
        lens.step(value)
        return model, [value.detach()]

    run = observed(loop, tmp_path)
    assert run["grad_norm"].values == pytest.approx(norms[-1:], rel=1e-5)


def test_an_average_of_the_weights_is_not_observed(tmp_path):
    copies = []

    def loop(attach):
        model, losses = Decoder(), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        average = torch.optim.swa_utils.AveragedModel(model)
        copies.append(average)
        for _ in range(3):
            value = loss_of(model, tokens())
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            loss_of(average, tokens())
            lens.step(value)
            losses.append(value.detach())
        return average, losses

    run = observed(loop, tmp_path)
    alone = observed(simple(Decoder), tmp_path / "alone")
    assert run["resid_rms"].values.shape == (3, 3)
    assert run["resid_rms"].values[0] == pytest.approx(alone["resid_rms"].values[0], rel=1e-6)


def copies(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return {
        "deepcopy": copy.deepcopy(model),
        "save": torch.load(buffer, weights_only=False),
        "pickle": pickle.loads(pickle.dumps(model)),
    }


@pytest.mark.parametrize("how", ["deepcopy", "save", "pickle"])
def test_a_copy_of_an_observed_model_works_and_is_not_observed(how, tmp_path):
    torch.manual_seed(0)
    model, x = Decoder(dropout=0.0), tokens()
    optimizer = torch.optim.AdamW(model.parameters())
    with sl.attach(model, optimizer, tmp_path / "a", every=1) as lens:
        for _ in range(2):
            loss = loss_of(model, x)
            loss.backward()
            copied = copies(model)[how]
            loss_of(copied, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
        assert not lens.guard.failures
        copied = copies(model)[how]
        again = torch.optim.AdamW(copied.parameters())
        copied_optimizer = copy.deepcopy(optimizer)
        assert not copied_optimizer._optimizer_step_pre_hooks
        with sl.attach(copied, again, tmp_path / "b", every=1) as other:  # and it can be observed itself
            loss = loss_of(copied, x)
            loss.backward()
            again.step()
            other.step(loss)
    run, copied_run = sl.load(tmp_path / "a"), sl.load(tmp_path / "b")
    assert run["loss"].steps.tolist() == [1, 2]
    assert run["resid_rms"].values.shape == (2, 3)
    assert copied_run["resid_rms"].values.shape == (1, 3)


@pytest.mark.parametrize("backward", [{}, {"create_graph": True}])
def test_many_steps_leave_no_tensor_behind(backward, tmp_path):
    torch.manual_seed(0)
    model = Decoder(d=8, heads=2, depth=1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    counts = []
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        for step in range(60 if backward else 200):
            with torch.no_grad():
                loss_of(model, tokens(1, 8))
            loss = loss_of(model, tokens(1, 8))
            loss.backward(**backward)
            lens.grads_ready()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            lens.step(loss, tokens=32)
            del loss
            if step % 20 == 19:
                gc.collect()
                counts.append(sum(issubclass(type(o), Tensor) for o in gc.get_objects()))
        assert not lens.guard.failures
    assert counts[-1] <= counts[0]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_graph_through_the_gradients_is_left_alone(tmp_path):
    def loop(attach):
        model, losses = Decoder(by_hand=True), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        for _ in range(3):
            value = loss_of(model, tokens())
            grads = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
            total = value + 0.1 * sum(g.square().sum() for g in grads)
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(total)
            losses.append(total.detach())
        return model, losses

    run = observed(loop, tmp_path)
    assert np.isfinite(run["resid_rms"].values).all()
