"""Published architectures of unlike kinds, checkpointed, in mixed precision and on two processes: equal to the bit."""

from __future__ import annotations

import pytest
import torch
from architecture_ways import STEPS, on_each_rank, train
from processes import on
from test_architectures import DATA, row_of

import stabilitylens as sl

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.skipif(not (DATA / "truth.jsonl").exists(), reason="STABILITYLENS_DATA is not set"),
    pytest.mark.filterwarnings("ignore"),
]

#: grouped queries, Post-LN encoder, encoder and decoder with a bias of positions, vision, experts, latent keys, soft-caps
KINDS = ("mistral", "bert", "t5", "vit", "olmoe", "deepseek_v2", "gemma2")
ALONE = ("reentrant", "checkpointed", "selective", "amp")
SPREAD = ("ddp", "fsdp2")
#: those that run by default, one or two a way; all others are for ``make bench``
USUAL = {
    ("mistral", "selective"), ("t5", "checkpointed"), ("vit", "reentrant"), ("olmoe", "amp"), ("gemma2", "selective"),
}
USUAL_SPREAD = [("bert", "ddp"), ("deepseek_v2", "fsdp2")]


def cases():
    marks = {True: [], False: [pytest.mark.grid]}
    return [pytest.param(n, w, id=f"{n}-{w}", marks=marks[(n, w) in USUAL]) for n in KINDS for w in ALONE]


def same(a, b) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def seen(run: sl.Run, name: str) -> None:
    """Every step, every block and every attention call once, however often it was computed."""
    assert len(run["loss"]) == STEPS and len(run["resid_rms"]) == STEPS
    assert run["max_attn_logit"].values.shape[1] == row_of(name)["n_softmax_attn"]
    assert run.header.coverage.layers[0] == run.header.coverage.layers[1] > 0


@pytest.mark.parametrize(("name", "way"), cases())
def test_alone(name, way, tmp_path):
    bare = train(name, way, None)
    assert same(bare, train(name, way, None)), "the training is not equal to itself"
    assert same(bare, train(name, way, tmp_path))
    run = sl.load(tmp_path)
    seen(run, name)
    if way == "amp":
        plain = tmp_path / "plain"
        train(name, "", plain)
        full = sl.load(plain)
        assert run["grad_norm"].values == pytest.approx(full["grad_norm"].values, rel=0.1), "gradients are recorded unscaled"
        assert run.header.recipe.precision == "bf16" and run["loss_scale"].values[0] == 1024


def check_on_two(some: list[tuple[str, str]], folder) -> None:
    ranks = on(2, on_each_rank, some, str(folder), limit=600.0)
    for name, way in some:
        for bare, again, mine in (results[name, way] for results in ranks):
            assert same(bare, again) and same(bare, mine), (name, way)
        seen(sl.load(folder / f"{name}-{way}"), name)


def test_on_two_processes(tmp_path):
    check_on_two(USUAL_SPREAD, tmp_path)


@pytest.mark.grid
@pytest.mark.parametrize("way", SPREAD)
def test_all_on_two_processes(way, tmp_path):
    check_on_two([(name, way) for name in KINDS], tmp_path)
