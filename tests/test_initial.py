"""One forward and backward before training: what it measures, that it leaves no trace, and what the rules make of it."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.run import INITIAL

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from stabilitylens.hooks.initial import measure_initial  # noqa: E402

D, HEADS, VOCAB, LENGTH = 32, 4, 50, 12


class Block(nn.Module):
    """Attention and a feed-forward whose outputs have ``gain`` times the size of their inputs, with norms as asked."""

    def __init__(self, gain: float, placement: str, qk_norm: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
        for linear in (self.qkv, self.out, self.up, self.down):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        self.out.weight.data *= gain
        self.down.weight.data *= gain
        self.norms = nn.ModuleList(nn.RMSNorm(D) if placement != "none" else nn.Identity() for _ in range(2))
        self.qk = nn.ModuleList(nn.RMSNorm(D // HEADS) if qk_norm else nn.Identity() for _ in range(2))
        self.before = placement == "pre"

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(self.qk[0](q), self.qk[1](k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for branch, norm in ((self.attend, self.norms[0]), (lambda z: self.down(torch.relu(self.up(z)) * 2**0.5), self.norms[1])):
            x = x + (branch(norm(x)) if self.before else norm(branch(x)))
        return x


class Model(nn.Module):
    def __init__(self, depth: int = 4, gain: float = 1.0, placement: str = "pre", qk_norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, D)
        self.blocks = nn.ModuleList(Block(gain, placement, qk_norm) for _ in range(depth))
        self.head = nn.Linear(D, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tokens() -> torch.Tensor:
    return torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def test_measures_what_the_forward_and_backward_of_the_model_are() -> None:
    model, x = Model(), tokens()
    run = measure_initial(model, x)
    stream = model.embed(x)
    streams = []
    for block in model.blocks:
        stream = block(stream)
        stream.retain_grad()
        streams.append(stream)
    logits = model.head(stream)
    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    close = {"rtol": 1e-4}
    np.testing.assert_allclose(run["embedding_rms"].values, [model.embed(x).square().mean().sqrt().item()], **close)
    np.testing.assert_allclose(run["resid_rms"].values, [[s.square().mean().sqrt().item() for s in streams]], **close)
    np.testing.assert_allclose(run["resid_grad_norm"].values, [[s.grad.norm().item() for s in streams]], **close)
    np.testing.assert_allclose(run["log_z"].values, [logits.logsumexp(-1).mean().item()], **close)
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))
    np.testing.assert_allclose(run["grad_norm"].values, [norm], **close)
    assert run.format == INITIAL and not run["lr"].values.any()


def test_leaves_no_trace_on_the_model_or_on_random_state() -> None:
    model = Model().train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    keys = set(vars(model)) | set(vars(model.blocks[0]))
    measure_initial(model)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert set(vars(model)) | set(vars(model.blocks[0])) == keys
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_measuring_twice_is_the_same_and_dropout_plays_no_part() -> None:
    layer = nn.TransformerEncoderLayer(D, HEADS, 64, dropout=0.5, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    one, two = measure_initial(model), measure_initial(model)
    for name in ("resid_rms", "resid_grad_norm", "max_attn_logit"):
        np.testing.assert_array_equal(one[name].values, two[name].values)
        assert one[name].values.shape[1] == 3


def test_a_loss_may_be_given() -> None:
    run = measure_initial(Model(), tokens(), loss=lambda logits: 3 * logits.mean())
    one = measure_initial(Model(), tokens(), loss=lambda logits: logits.mean())
    np.testing.assert_allclose(run["grad_norm"].values, 3 * one["grad_norm"].values, rtol=1e-5)


def fired(model: nn.Module, **options: object) -> dict[str, str]:
    report = sl.audit(model, tokens(), init=True, **options)
    return {f.name: f.severity for f in report.findings if f.verdict == "fired"}


def test_no_norm_is_judged_by_what_was_measured() -> None:
    assert fired(Model(8, 1.0, "none"))["no-norm"] == "error"
    assert fired(Model(8, (2 * 8) ** -0.5, "none"))["no-norm"] == "info"
    assert "no-norm" not in fired(Model(8))


def test_gradients_that_explode_or_vanish_are_found() -> None:
    class Shrinking(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x)
            for block in self.blocks:
                x = 0.1 * block(x)
            return self.head(x)

    assert fired(Model(12, 1.0, "none"))["gradient-explosion"] == "error"
    assert fired(Shrinking(6, 0.1, "none"))["gradient-vanishing"] in ("warning", "error")
    calm = fired(Model(8))
    assert not {"gradient-explosion", "gradient-vanishing"} & set(calm)


def test_an_output_norm_alone_is_steep_and_with_qk_norm_it_is_not() -> None:
    def ratio(qk_norm: bool) -> float:
        level = measure_initial(Model(16, 1.0, "output", qk_norm), tokens())["resid_grad_norm"].values[0]
        return float(level[0] / level[-1])

    assert ratio(False) > 2 * ratio(True)
    assert "output-norm-without-qk-norm" in fired(Model(16, 1.0, "output"))
    assert "output-norm-without-qk-norm" not in fired(Model(16, 1.0, "output", qk_norm=True))


def test_large_logits_before_training_are_found_and_growth_is_not_claimed() -> None:
    model = Model(2)
    for block in model.blocks:
        block.qkv.weight.data[: 2 * D] *= 30
    report = sl.audit(model, tokens(), init=True)
    growth = next(f for f in report.findings if f.code == "SL201")
    assert growth.severity == "warning" and growth.message.endswith("before training") and growth.where.steps is None
    by_code = {f.code: f for f in report.findings}
    assert "SL203" not in by_code and "in this run" not in by_code["SL101"].message


def test_without_init_only_static_rules_speak_and_with_it_the_report_shows_it() -> None:
    plain, measured = sl.audit(Model(), tokens()), sl.audit(Model(), tokens(), init=True)
    assert plain.subjects[0].initial is None and '"initial": null' in plain.to_json()
    assert {f.code for f in plain.findings} < {f.code for f in measured.findings}
    for text in (str(measured), measured.to_html()):
        assert "One forward and backward before training" in text and "resid_grad_norm" in text
    assert '"resid_rms/layer": [' in measured.to_json() and measured.runs == []


@pytest.mark.parametrize(
    ("make", "inputs", "said"),
    [
        (lambda: Model().to("meta"), None, "meta device"),
        (lambda: Model().requires_grad_(False), None, "nothing to measure"),
        (lambda: Model(), torch.zeros(2, 3, 4), "its forward raised"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.zeros(2, 3), "its forward raised"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(make, inputs, said: str) -> None:
    with pytest.raises(BadInput) as raised:
        measure_initial(make(), inputs)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(BadInput):
        measure_initial("gpt2")
