"""What is recorded is what was there: every metric against the same quantity computed by hand."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training import VOCABULARY, Block, Decoder, EncoderClassifier, gpt2, llama, loss_of, tokens, train

import stabilitylens as sl

ATTENTION = ("query_norm", "key_norm", "value_norm", "max_attn_logit", "attn_entropy", "attn_entropy_ratio")


def one_step(model, x, logdir, lr=1e-2, **attach):
    """Train one step with a lens; the run, and the gradients, parameters and updates kept by hand."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with sl.attach(model, optimizer, logdir, **attach) as lens:
        loss = loss_of(model, x)
        loss.backward()
        lens.grads_ready()
        grads = {n: p.grad.clone() for n, p in model.named_parameters()}
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        lens.step(loss)
        assert not lens.guard.failures
    after = {n: p.detach().clone() for n, p in model.named_parameters()}
    return sl.load(logdir), loss, grads, before, after


def norm(tensors):
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors))


def of_block(tensors, i):
    return [t for n, t in tensors.items() if n.startswith(f"blocks.{i}.")]


def test_parameters_gradients_and_updates(tmp_path):
    torch.manual_seed(0)
    run, loss, grads, before, after = one_step(Decoder(dropout=0.0), tokens(), tmp_path)
    updates = {n: after[n] - before[n] for n in before}
    assert run["loss"].values == pytest.approx([loss.item()], rel=1e-6)
    assert run["grad_norm"].values == pytest.approx([norm(grads.values())], rel=1e-5)
    assert run["grad_norm/layer"].values[0] == pytest.approx([norm(of_block(grads, i)) for i in range(3)], rel=1e-5)
    assert run["clip_coef"].values == pytest.approx([0.1 / norm(grads.values())], rel=1e-4)
    assert run["grad_norm_clipped/layer"].values[0] == pytest.approx(
        [0.1 * norm(of_block(grads, i)) / norm(grads.values()) for i in range(3)], rel=1e-4
    )
    assert run["param_norm/layer"].values[0] == pytest.approx([norm(of_block(before, i)) for i in range(3)], rel=1e-5)
    ratio = [norm(of_block(updates, i)) / norm(of_block(before, i)) for i in range(3)]
    assert run["update_ratio/layer"].values[0] == pytest.approx(ratio, rel=1e-5)
    size = sum(t.numel() for t in of_block(updates, 0))
    assert run["update_rms/layer"].values[0] == pytest.approx(
        [norm(of_block(updates, i)) / math.sqrt(size) / 1e-2 for i in range(3)], rel=1e-5
    )
    assert run["grad_norm/group"].labels["group"] == ("embedding", "norm", "head")
    assert run["grad_norm/group"].values[0, 0] == pytest.approx(norm([grads["embedding.weight"]]), rel=1e-5)


def test_the_first_adam_step_has_rms_one_because_v_is_the_squared_gradient(tmp_path):
    torch.manual_seed(0)
    run, *_ = one_step(Decoder(dropout=0.0), tokens(), tmp_path)
    assert run["adam_rms/layer"].values[0] == pytest.approx(np.ones(3), rel=1e-2)


@pytest.mark.parametrize("recompute", ["", "full", "reentrant", "selective"])
def test_residual_stream_and_its_gradient_once_a_step_under_any_checkpointing(recompute, tmp_path):
    torch.manual_seed(0)
    model, x = Decoder(dropout=0.0, recompute=recompute), tokens()
    run, *_ = one_step(model, x, tmp_path)
    torch.manual_seed(0)
    twin = Decoder(dropout=0.0)
    h, outputs = twin.embedding(x), []
    for block in twin.blocks:
        h = block(h)
        h.retain_grad()
        outputs.append(h)
    F.cross_entropy(twin.head(twin.norm(h))[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    assert run["resid_rms"].values[0] == pytest.approx([o.square().mean().sqrt().item() for o in outputs], rel=1e-5)
    assert run["resid_absmax"].values[0] == pytest.approx([o.abs().max().item() for o in outputs], rel=1e-6)
    assert run["resid_grad_norm"].values[0] == pytest.approx([o.grad.norm().item() for o in outputs], rel=1e-5)
    logits = twin.head(twin.norm(outputs[-1]))
    assert run["log_z"].values == pytest.approx([logits.logsumexp(-1).mean().item()], rel=1e-5)
    assert run["nonfinite_count"].values.tolist() == [[0, 0, 0]]


def test_branch_ratio_is_what_a_sub_layer_adds_over_what_it_is_added_to(tmp_path):
    torch.manual_seed(0)
    model, x = Decoder(dropout=0.0, depth=1), tokens()
    twin = Decoder(dropout=0.0, depth=1)
    twin.load_state_dict(model.state_dict())
    run, *_ = one_step(model, x, tmp_path)
    block: Block = twin.blocks[0]
    stream = twin.embedding(x)
    attended = block.attn(block.norm1(stream))
    middle = stream + attended
    fed = block.down(F.gelu(block.up(block.norm2(middle))))
    expected = [(attended.square().mean() / stream.square().mean()).sqrt().item(), (fed.square().mean() / middle.square().mean()).sqrt().item()]
    assert run["branch_ratio"].values[0, 0] == pytest.approx(expected, rel=1e-5)
    assert run["branch_ratio"].labels["branch"] == ("attention", "feed_forward")


@pytest.mark.parametrize("make", [functools.partial(EncoderClassifier, norm_first=f) for f in (True, False)])
def test_branches_of_torchs_encoder_are_told_apart_in_pre_and_post_ln(make, tmp_path):
    run, *_ = one_step(make(), tokens(), tmp_path)
    assert run["branch_ratio"].values.shape == (1, 3, 2)
    assert np.isfinite(run["branch_ratio"].values).all()


def attention_of(make, tmp_path, attention=None, steps=1, **options):
    train(make if attention is None else functools.partial(make, attention), tmp_path, steps=steps, **options)
    return sl.load(tmp_path)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_eager_and_sdpa_see_the_same_attention(make, tmp_path):
    runs = [attention_of(make, tmp_path / kind, kind) for kind in ("eager", "sdpa")]
    for name in ATTENTION[:1] + ATTENTION[3:]:
        a, b = (run[name].values for run in runs)
        assert a.shape == b.shape == (1, 3, 4)
        assert a == pytest.approx(b, rel=1e-4, abs=1e-4)


def test_hand_written_attention_is_seen_as_torchs_own(tmp_path):
    def make(by_hand):
        torch.manual_seed(0)
        return Decoder(dropout=0.0, by_hand=by_hand)

    runs = [attention_of(functools.partial(make, hand), tmp_path / str(hand)) for hand in (False, True)]
    for name in ATTENTION:
        assert runs[0][name].values == pytest.approx(runs[1][name].values, rel=1e-4, abs=1e-5), name


def spellings():
    """The same attention, scale 0.5, spelled as people spell it."""

    def einsum(q, k, v):
        return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(0.5 * torch.einsum("bhqd,bhkd->bhqk", q, k), dim=-1), v)

    def positions_first(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.5).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).transpose(1, 2)

    def scaled_query(q, k, v):
        return F.softmax(torch.matmul(q * 0.5, k.transpose(2, 3)), dim=-1, dtype=torch.float32).to(q.dtype) @ v

    def folded(q, k, v):
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        scores = torch.baddbmm(torch.zeros(q.shape[0], q.shape[1], k.shape[1]), q, k.transpose(1, 2), beta=0, alpha=0.5)
        return torch.bmm(scores.view(2, 3, 6, 6).softmax(-1).view(6, 6, 6), v).view(2, 3, 6, -1)

    def in_place(q, k, v):
        return (q @ k.mT).div_(2.0).softmax(-1) @ v

    return {f.__name__: f for f in (einsum, positions_first, scaled_query, folded, in_place)}


@pytest.mark.parametrize("name", spellings())
def test_every_spelling_of_softmax_attention(name, tmp_path):
    class Model(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.qkv, self.blocks, self.how = nn.Linear(8, 72), nn.ModuleList([nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 8))]), how

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (3, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            return self.blocks[0](self.how(q, k, v).transpose(1, 2).flatten(2)).square().mean()

    def reference(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=0.5)

    runs = []
    for how in (spellings()[name], reference):
        torch.manual_seed(0)
        model, x = Model(how), torch.randn(2, 6, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with sl.attach(model, optimizer, tmp_path / how.__name__) as lens:
            loss = model(x)
            loss.backward()
            optimizer.step()
            lens.step(loss)
            assert not lens.guard.failures
        runs.append(sl.load(tmp_path / how.__name__))
    for metric in ATTENTION:
        assert runs[0][metric].values == pytest.approx(runs[1][metric].values, rel=1e-4, abs=1e-5), metric


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_in_all_its_modes(need_weights, batch_first, tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mha = nn.MultiheadAttention(16, 4, kdim=12, vdim=10, batch_first=batch_first)

        def forward(self, x, context):
            padding = torch.zeros(3, 7, dtype=torch.bool)
            padding[0, 4:] = True
            values = context[..., :10]
            return self.mha(x, context, values, key_padding_mask=padding, need_weights=need_weights)[0].square().mean()

    torch.manual_seed(0)
    model, x, context = Model(), torch.randn(3, 5, 16), torch.randn(3, 7, 12)
    q = (x @ model.mha.q_proj_weight.T + model.mha.in_proj_bias[:16]).unflatten(-1, (4, 4)).transpose(1, 2)
    k = (context @ model.mha.k_proj_weight.T + model.mha.in_proj_bias[16:32]).unflatten(-1, (4, 4)).transpose(1, 2)
    raw = (q.double() @ k.double().mT * 0.5).detach()
    raw[0, :, :, 4:] = -math.inf
    x, context = (x, context) if batch_first else (x.transpose(0, 1), context.transpose(0, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sl.attach(model, optimizer, tmp_path) as lens:
        loss = model(x, context)
        loss.backward()
        optimizer.step()
        lens.step(loss)
        assert not lens.guard.failures
    run = sl.load(tmp_path)
    assert run["max_attn_logit"].values[0, 0] == pytest.approx(raw.amax((0, 2, 3)).numpy(), rel=1e-5)
    entropy = torch.special.entr(raw.softmax(-1)).sum(-1).mean((0, 2))
    assert run["attn_entropy"].values[0, 0] == pytest.approx(entropy.numpy(), abs=1e-5)
    assert run["query_norm"].values[0, 0] == pytest.approx(q.norm(dim=-1).mean((0, 2)).tolist(), rel=1e-5)


def test_micro_batches_add_up_to_one_step(tmp_path):
    torch.manual_seed(0)
    model, x = Decoder(dropout=0.0), tokens(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        for micro in (None, 2):
            for part in x.split(micro) if micro else [x]:
                loss = model(part) * (len(part) / 4)
                loss.backward()
                lens.micro_step(loss * (4 / len(part)))
            lens.grads_ready()
            optimizer.step()
            optimizer.zero_grad()
            lens.step()
    run = sl.load(tmp_path)
    for name in ("loss", "grad_norm", "resid_rms", "max_attn_logit", "attn_entropy", "log_z"):
        whole, parts = run[name].values
        assert parts == pytest.approx(whole, rel=1e-4), name


def test_generation_and_evaluation_between_steps_are_not_in_the_record(tmp_path):
    def run_with(extra):
        torch.manual_seed(0)
        model = llama(attention_dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        x = tokens()
        with sl.attach(model, optimizer, tmp_path / str(extra), every=1) as lens:
            for _ in range(2):
                if extra:
                    model.generate(x[:, :3], max_new_tokens=4, do_sample=False, pad_token_id=0)
                    model.eval()
                    loss_of(model, tokens())
                    model.train()
                loss = loss_of(model, x)
                loss.backward()
                optimizer.step()
                lens.step(loss)
        return sl.load(tmp_path / str(extra))

    clean, with_extra = run_with(False), run_with(True)
    for name in (*ATTENTION, "resid_rms", "log_z"):
        assert with_extra[name].values == pytest.approx(clean[name].values, rel=1e-6), name


def test_tied_weights_count_once(tmp_path):
    torch.manual_seed(0)
    model, x = gpt2(), tokens()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sl.attach(model, optimizer, tmp_path) as lens:
        loss = loss_of(model, x)
        loss.backward()
        lens.grads_ready()
        optimizer.step()
        lens.step(loss)
    total = norm(p.grad for p in model.parameters())
    run = sl.load(tmp_path)
    assert run["grad_norm"].values == pytest.approx([total], rel=1e-5)
    assert run.header.coverage.parameters == (len(list(model.parameters())),) * 2
    assert np.isfinite(run["log_z"].values).all()  # the tied head is found as the output layer
    assert VOCABULARY == model.config.vocab_size
