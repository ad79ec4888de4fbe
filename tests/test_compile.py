"""Under torch.compile: one graph, the same whether a step is sampled or not, and to the bit the bare one's results."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from training import Decoder, EncoderClassifier, llama, loss_of, tokens, update

import stabilitylens as sl

COMPILED = ("resid_rms", "resid_absmax", "resid_grad_norm", "max_attn_logit", "attn_entropy", "query_norm", "value_norm")


def train(make, logdir=None, *, every=1, backend="aot_eager", regional=False, autocast=False, lengths=(16,), **options):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lens = sl.attach(model, optimizer, logdir, every=every) if logdir else None
    counter = CompileCounterWithBackend(backend) if backend else None
    run, losses = model, []
    if regional:
        for block in model.blocks:
            block.compile(backend=counter, fullgraph=True)
    elif counter:
        run = torch.compile(model, backend=counter, fullgraph=True, **options)
    for i in range(6):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(run, tokens(2, lengths[i % len(lengths)]))
        update(loss, optimizer, lens)
        losses.append(loss.detach().clone())
    if lens:
        assert not lens.guard.failures
        lens.close()
    return losses, [p.detach().clone() for p in model.parameters()], counter.frame_count if counter else 0


def assert_equal(a, b):
    assert all(map(torch.equal, a[0], b[0]))
    assert all(map(torch.equal, a[1], b[1]))


CASES = {
    "whole": (Decoder, {}),
    "checkpointed": (functools.partial(Decoder, recompute="full"), {}),
    "autocast": (Decoder, {"autocast": True}),
    "regional": (Decoder, {"regional": True}),
    "regional-deep": (functools.partial(Decoder, depth=12), {"regional": True}),
    "dynamic": (Decoder, {"dynamic": True, "lengths": (16, 11, 7)}),
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_equal_to_the_bit(name, tmp_path):
    make, options = CASES[name]
    make = functools.partial(make, dropout=0.0)
    bare, again = (train(make, **options) for _ in range(2))
    assert_equal(bare, again)
    sampled = train(make, tmp_path / "every", every=1, **options)
    never = train(make, tmp_path / "never", every=10**6, **options)
    assert_equal(sampled, bare)
    assert_equal(never, bare)
    assert sampled[2] == never[2]
    if not options.get("regional"):
        assert sampled[2] == bare[2]
    run = sl.load(tmp_path / "every")
    eager = {k: v for k, v in options.items() if k in ("autocast", "lengths")}
    train(make, tmp_path / "eager", backend=None, **eager)
    reference = sl.load(tmp_path / "eager")
    for metric in COMPILED:
        assert run[metric].values == pytest.approx(reference[metric].values, rel=2e-2 if "autocast" in options else 1e-3), metric
    layers = len(run["resid_rms"].labels["layer"])
    assert run.header.coverage.layers == (layers, layers)
    assert any("compiled" in why for _, why in run.header.coverage.not_observed)


def test_the_number_of_graphs_does_not_grow_with_the_blocks(tmp_path):
    few = train(functools.partial(Decoder, depth=3), tmp_path / "few", regional=True)
    many = train(functools.partial(Decoder, depth=12), tmp_path / "many", regional=True)
    assert few[2] == many[2]


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16-autocast"])
def test_inductor(autocast, tmp_path):
    make = functools.partial(Decoder, dropout=0.0)
    try:
        bare = train(make, backend="inductor", autocast=autocast)
    except Exception as error:
        if "compiler" in str(error).lower():
            pytest.skip("no C++ compiler is installed")
        raise
    assert_equal(train(make, backend="inductor", autocast=autocast), bare)
    for every in (1, 10**6):
        assert_equal(train(make, tmp_path / str(every), every=every, backend="inductor", autocast=autocast), bare)
    assert "max_attn_logit" in sl.load(tmp_path / "1")


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_model_of_transformers(use_cache, tmp_path):
    make = functools.partial(llama, attention_dropout=0.0, use_cache=use_cache)
    bare = train(make)
    assert_equal(train(make, tmp_path), bare)
    run = sl.load(tmp_path)
    assert run["max_attn_logit"].values.shape == (6, 3, 4)
    assert ("resid_grad_norm" in run) is not use_cache
    assert use_cache == ("use_cache=False" in (run.why_missing("resid_grad_norm") or ""))


def test_attaching_to_a_compiled_model_says_what_to_do_and_observes_the_parameters(tmp_path):
    torch._dynamo.reset()
    model = torch.compile(Decoder(), backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.warns(sl.hooks.LensWarning, match="attach before torch.compile"):
        lens = sl.attach(model, optimizer, tmp_path)
    loss = model(tokens())
    loss.backward()
    lens.grads_ready()
    optimizer.step()
    lens.step(loss)
    lens.close()
    run = sl.load(tmp_path)
    assert "update_ratio" in run
    assert "resid_rms" not in run
    assert "attach before torch.compile" in run.why_missing("resid_rms")


def test_models_of_one_class_in_one_process_are_each_observed(tmp_path):
    torch._dynamo.reset()

    def made(logdir):
        model = Decoder(depth=2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        lens = sl.attach(model, optimizer, logdir, every=1) if logdir else None
        return torch.compile(model, backend="aot_eager", fullgraph=True), optimizer, lens

    def step(model, optimizer, lens):
        update(loss_of(model, tokens()), optimizer, lens, ready=False)

    bare = made(None)
    step(*bare)  # its graph has no operators of ours, and must not be taken for those that follow
    first, second = made(tmp_path / "first"), None
    step(*first)
    second = made(tmp_path / "second")
    for _ in range(2):
        for loop in (second, bare, first):
            step(*loop)
    for lens, name, steps in ((first[2], "first", 3), (second[2], "second", 2)):
        assert not lens.guard.failures
        lens.close()
        run = sl.load(tmp_path / name)
        assert run["resid_rms"].steps.tolist() == run["max_attn_logit"].steps.tolist() == list(range(1, steps + 1))


def test_torchs_function_is_put_back(tmp_path):
    before = torch.nn.functional.scaled_dot_product_attention
    model = EncoderClassifier()
    with sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path):
        pass
    assert torch.nn.functional.scaled_dot_product_attention is before
