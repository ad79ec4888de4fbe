"""fuse_norms on published architectures: which layers it takes, that they run, and that results and what a lens sees are the same."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from test_architectures import DATA, build, first_tensor, rows
from torch import nn
from training import update

import stabilitylens as sl
from stabilitylens.hooks.fuse import FusedNorm

#: classes of the table of architectures whose norms are of no known form, or have other inputs
UNKNOWN = {
    "NoNorm", "BatchNorm1d", "BatchNorm2d", "GroupNorm", "PoolFormerGroupNorm", "DebertaLayerNorm", "ChameleonLayerNorm", "StableLmLayerNormPerHead",
    "Llama4TextL2Norm", "Qwen3_5RMSNormGated", "MambaRMSNormGated", "GraniteMoeHybridRMSNormGated", "_WeightNorm",
}  # fmt: skip


def norm_layers(model) -> set[str]:
    """By the names of their classes, which fuse_norms does not look at; what ends so and holds linear layers is none."""
    layers = {n: m for n, m in model.named_modules() if type(m).__name__.endswith(("Norm", "NormGated", "NormPerHead"))}
    return {n for n, m in layers.items() if not any(isinstance(x, nn.Linear) for x in m.modules()) and type(m).__name__ not in UNKNOWN | {"DbrxNormAttentionNorm"}}


def ran(model, kwargs) -> set[str]:
    """Which modules a forward called."""
    called = set()
    hooks = [m.register_forward_hook(lambda *_, name=n: called.add(name)) for n, m in model.named_modules()]
    with torch.no_grad():
        model(**kwargs)
    for hook in hooks:
        hook.remove()
    return called


def cases():
    """Thirty of the architectures; the others are for ``make bench``."""
    for i, row in enumerate(rows()):
        yield pytest.param(row["name"], id=row["name"], marks=[] if i % 10 < 3 else [pytest.mark.grid])


def observe(name, logdir, fuse: bool):
    model, kwargs = build(name, "eager")
    names = sl.fuse_norms(model) if fuse else ()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, logdir, every=1) as lens:
        for _ in range(2):
            out = first_tensor(model(**kwargs))
            loss = out.float().square().mean()
            update(loss, optimizer, lens)
        assert not lens.guard.failures
    return names, out.detach(), sl.load(logdir)


@pytest.mark.skipif(not (DATA / "truth.jsonl").exists(), reason="STABILITYLENS_DATA is not set")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(cases()))
def test_architectures_compute_and_show_the_same(name, tmp_path):
    _, plain, before = observe(name, tmp_path / "plain", False)
    _, out, after = observe(name, tmp_path / "fused", True)
    assert torch.equal(out, plain)
    assert set(before) == set(after)
    for metric in set(before) - {"step_time"}:
        assert np.array_equal(before[metric].values, after[metric].values, equal_nan=True), metric
    assert before.header.anatomy == after.header.anatomy


@pytest.mark.skipif(not (DATA / "truth.jsonl").exists(), reason="STABILITYLENS_DATA is not set")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(cases()))
def test_every_norm_of_an_architecture_is_taken_and_runs_in_its_own_rounding(name, monkeypatch):
    model, kwargs = build(name, "eager")
    wanted = norm_layers(model)
    names = sl.fuse_norms(model)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, FusedNorm)}
    assert set(names) == set(layers) == wanted
    assert bool(wanted) == (name not in {"mobilebert", "levit", "deberta", "poolformer"})
    told = set()
    monkeypatch.setattr("stabilitylens.hooks.norm_forms.tell_in_pytorch", lambda layer, *_: told.add(layer))
    called = ran(model, kwargs)
    assert told == {m._fused.layer for n, m in layers.items() if n in called}
    for layer in layers.values():
        assert_rounds_as_its_own_class(copy.deepcopy(layer))


def assert_rounds_as_its_own_class(layer) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        layer.to(dtype)
        with torch.no_grad():
            for p in layer.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        x = torch.randn(64, layer._fused.fit.d, generator=torch.Generator().manual_seed(0)).to(dtype)
        assert torch.equal(layer(x), super(FusedNorm, layer).forward(x)), (type(layer), dtype)
