"""The reference Transformer: every choice does what it says, and the lens sees it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.norms import NORMS, deep_norm_scales
from stabilitylens.reproductions import Choices, Transformer, Trial, loss_of, train
from stabilitylens.reproductions._data import IGNORED, copy_task, induction_task

SMALL = Choices(depth=2, width=16, heads=4, context=8, vocabulary=11)
PLACEMENTS = ("pre", "post", "peri", "output", "periodic", "parallel", "none", "rezero", "deep")
WORDS = torch.arange(16).view(2, 8) % 11


def model(**changes: object) -> Transformer:
    torch.manual_seed(0)
    return Transformer(replace(SMALL, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_is_what_the_audit_reads(placement: str):
    audited = sl.audit(model(placement=placement, qk_norm=True, depth=6), example_inputs=(WORDS,)).anatomy
    assert audited is not None
    # of a norm on the trunk now and then, the audit says periodic only where the branches have none
    told = {"deep": "post", "rezero": "none", "parallel": "pre", "periodic": "pre"}
    assert audited.norm_placement == told.get(placement, placement)
    assert audited.qk_norm == "head" and audited.parallel == (placement == "parallel")


@pytest.mark.parametrize("norm", NORMS.names())
def test_every_norm_trains(norm: str):
    net = model(norm=norm)
    loss_of(net(WORDS), WORDS).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_only_the_decoder_is_blind_to_the_future(kind: str):
    net, other = model(kind=kind), WORDS.clone()
    other[:, -1] = (other[:, -1] + 1) % 11
    same = torch.equal(net(WORDS)[:, :-1], net(other)[:, :-1])
    assert same == (kind == "decoder")


def test_a_vit_classifies_patches():
    assert model(kind="vit", pixels=4)(torch.randn(3, 8, 4)).shape == (3, 11)


@pytest.mark.parametrize("kv_heads", [None, 1, 2])
def test_a_wide_soft_cap_is_no_soft_cap(kv_heads: int | None):
    free, capped, tight = (model(soft_cap=cap, kv_heads=kv_heads)(WORDS) for cap in (None, 1e4, 0.01))
    torch.testing.assert_close(free, capped, rtol=1e-4, atol=1e-5)
    assert (free - tight).abs().max() > 1e-3


def test_experts_are_weighted_by_the_router():
    net = model(experts=3)
    part = net.layers[0].sublayers[1].branch
    x = torch.randn(2, 8, 16)
    weights, chosen = part.router(x).softmax(-1).max(-1)
    by_hand = torch.stack([w * part.experts[c](t) for w, c, t in zip(weights.flatten(), chosen.flatten(), x.flatten(0, 1), strict=True)])
    torch.testing.assert_close(part(x), by_hand.view_as(x), rtol=1e-4, atol=1e-6)


def test_initialisations():
    plain, scaled, deep = (model(init=init, placement=p, width=64, depth=8) for init, p in (("xavier", "pre"), ("scaled", "pre"), ("xavier", "deep")))

    def std(net: Transformer, name: str) -> float:
        return float(dict(net.layers.named_parameters())[f"3.sublayers.{name}.weight"].detach().std())
    assert std(plain, "0.branch.out") == pytest.approx(math.sqrt(2 / 128), rel=0.1)
    assert std(scaled, "0.branch.out") == pytest.approx(std(plain, "0.branch.out") / 4, rel=0.1)
    assert std(scaled, "0.branch.q") == std(plain, "0.branch.q")
    assert std(deep, "1.branch.w2") == pytest.approx(deep_norm_scales(8).beta * std(plain, "1.branch.w2"), rel=0.1)


def test_tied_scaling_and_biases():
    tied = model(tied=True)
    assert tied.embed.weight is tied.head.weight
    names = {name for name, _ in model(layer_norm_scaling=True, bias=True).named_parameters()}
    assert "layers.1.sublayers.0.norm.inner.weight" in names and "layers.1.sublayers.0.branch.q.bias" in names


def test_z_loss_counts_only_targets():
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[1, 2, IGNORED], [0, IGNORED, 4]])
    z = torch.stack([logits[0, 0], logits[0, 1], logits[1, 0], logits[1, 2]]).logsumexp(-1).square().mean()
    torch.testing.assert_close(loss_of(logits, targets, 0.5), loss_of(logits, targets) + 0.5 * z)


@pytest.mark.parametrize(("bad", "says"), [({"heads": 3}, "not divisible"), ({"kv_heads": 3}, "evenly"), ({"base_width": 0}, "base width"), ({"kind": "vit", "tied": True}, "ViT")])
def test_what_does_not_fit_is_said(bad: dict, says: str):
    with pytest.raises(BadInput, match=says):
        replace(SMALL, **bad)


def test_tasks_can_be_solved_from_their_inputs():
    for words, targets in copy_task(2, 4, 10, 7, seed=1):
        asked = targets != IGNORED
        assert asked.sum() == 4 * 5 and torch.equal(targets[asked], words[:, :5].roll(0, 1).flatten())
    for words, targets in induction_task(2, 4, 10, 7, seed=1):
        for row, target in zip(words, targets[:, -1], strict=True):
            first = int((row == row[-1]).nonzero()[0])
            assert first < 9 and row[first + 1] == target and (row == 0).sum() == 2


def moved(width: int, base: int | None) -> float:
    """RMS change of the logits by five steps of Adam at one learning rate."""
    net = model(width=width, depth=2, base_width=base)
    optimizer = torch.optim.AdamW(net.groups(1e-2), 1e-2)
    before = net(WORDS).detach()
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(net(WORDS), WORDS.roll(-1, 1)).backward()
        optimizer.step()
    return float((net(WORDS).detach() - before).square().mean().sqrt())


def test_mup_moves_logits_alike_at_every_width():
    usual, mup = (moved(256, base) / moved(16, base) for base in (None, 16))
    assert usual > 3 and 0.6 < mup < 1.7


def test_mup_at_its_base_is_the_usual_model():
    usual, mup = model(), model(base_width=16)
    torch.testing.assert_close(usual(WORDS), mup(WORDS))
    (hidden,) = (group for group in mup.groups(1e-2) if len(group["params"]) == 12)
    assert hidden["lr"] == 1e-2 and sum(len(group["params"]) for group in mup.groups(1e-2)) == len(list(mup.parameters()))
    assert {group["lr"] for group in model(base_width=4).groups(1e-2)} == {1e-2, 1e-2 / 4}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_lowers_the_loss_and_is_recorded(precision: str, tmp_path: Path):
    trial = Trial(replace(SMALL, vocabulary=256, context=16), steps=40, lr=1e-2, warmup=5, precision=precision, every=20)  # type: ignore[arg-type]
    _, run = train(trial, 0, tmp_path)
    losses = run["loss"].values
    assert len(losses) == 40 and losses[-5:].mean() < losses[:5].mean() - 0.5
    assert run["max_attn_logit"].observed() and run.header.coverage.layers == (2, 2)
