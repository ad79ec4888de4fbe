"""On published architectures: training is equal to the bit, and what is seen of attention is what the model computed.

The builders and the number of attention calls of each architecture are read from ``STABILITYLENS_DATA``.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor
from training import update

import stabilitylens as sl

pytest.importorskip("transformers")
DATA = Path(os.environ.get("STABILITYLENS_DATA", "")) / "architectures"
pytestmark = pytest.mark.skipif(not (DATA / "truth.jsonl").exists(), reason="STABILITYLENS_DATA is not set")

#: what can't be seen, and why
UNSEEN = {
    "longformer": "its products are of overlapping chunks, joined before the softmax",
    "led": "its encoder's products are of overlapping chunks, joined before the softmax",
}


@functools.cache
def builders():
    spec = importlib.util.spec_from_file_location("tiny_architectures", DATA / "tiny.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows() -> list[dict]:
    path = DATA / "truth.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def first_tensor(out) -> Tensor:
    parts = out.to_tuple() if hasattr(out, "to_tuple") else [out]
    return next(x for x in parts if isinstance(x, Tensor) and x.is_floating_point())


def build(name: str, attention: str):
    torch.manual_seed(0)
    model, kwargs, _ = builders().build(name, attn=attention)
    return model.train(), kwargs


def train(name: str, attention: str, logdir=None, steps: int = 2):
    model, kwargs = build(name, attention)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lens = sl.attach(model, optimizer, logdir, every=1) if logdir else None
    losses = []
    for _ in range(steps):
        loss = first_tensor(model(**kwargs)).float().square().mean()
        update(loss, optimizer, lens)
        losses.append(loss.detach().clone())
    if lens:
        assert not lens.guard.failures
        lens.close()
    return losses, dict(model.state_dict()), torch.get_rng_state()


def assert_equal(a, b):
    assert all(map(torch.equal, a[0], b[0])), "losses differ"
    assert all(torch.equal(a[1][name], b[1][name]) for name in a[1]), "weights differ"
    assert torch.equal(a[2], b[2]), "random states differ"


def cases():
    """Three of five architectures eager and one of five with torch's function; all others are for ``make bench``."""
    for i, row in enumerate(rows()):
        for attention, share in (("eager", 3), ("sdpa", 1)):
            marks = [] if i % 5 < share else [pytest.mark.grid]
            yield pytest.param(row, attention, id=f"{row['name']}-{attention}", marks=marks)


def weighted():
    """Those that can return their weights; one of two is for ``make bench``."""
    names = [r["name"] for r in rows() if r["attention"] == "full" and r["n_softmax_attn"]]
    return [pytest.param(name, marks=[pytest.mark.grid] if i % 2 else []) for i, name in enumerate(names)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("row", "attention"), cases())
def test_observed(row, attention, tmp_path):
    name = row["name"]
    try:
        bare = train(name, attention)
    except ValueError as error:
        pytest.skip(f"it does not do {attention}: {error}"[:80])
    assert_equal(train(name, attention), bare)
    assert_equal(train(name, attention, tmp_path), bare)
    run = sl.load(tmp_path)
    calls = run["max_attn_logit"].values.shape[1] if "max_attn_logit" in run else 0
    if row["n_softmax_attn"] is not None and not (name in UNSEEN and attention == "eager"):
        assert calls == row["n_softmax_attn"]
    seen, blocks = run.header.coverage.layers
    assert seen == blocks > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", weighted())
def test_entropy_is_that_of_the_weights_that_the_model_says_it_used(name, tmp_path):
    model, kwargs = build(name, "eager")
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with sl.attach(model, optimizer, tmp_path) as lens:
        try:
            out = model(**kwargs, output_attentions=True)
        except (TypeError, ValueError):
            pytest.skip("it does not return its weights")
        weights = getattr(out, "attentions", None)
        if not weights or any(w is None or w.dim() != 4 for w in weights) or len(weights) != row_of(name)["n_softmax_attn"]:
            pytest.skip("it does not return the weights of each call as (batch, head, query, key)")
        lens.step(first_tensor(out).sum())
    run = sl.load(tmp_path)
    if "attn_entropy" not in run:
        pytest.skip("it was not seen" if name in UNSEEN else pytest.fail("no attention was seen"))
    seen = run["attn_entropy"].values[0]
    for i, w in enumerate(weights):
        rows_used = w.double()
        total = rows_used.sum(-1, keepdim=True)
        if not torch.allclose(total, torch.ones_like(total), atol=1e-3):
            pytest.skip("its weights are not a softmax over the keys alone")
        entropy = torch.special.entr(rows_used).sum(-1).mean((0, 2))
        assert seen[i, : len(entropy)] == pytest.approx(entropy.detach().numpy(), abs=2e-4), run["attn_entropy"].labels["attention"][i]


def row_of(name: str) -> dict:
    return next(row for row in rows() if row["name"] == name)
