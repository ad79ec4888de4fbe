"""Self- and cross-attention are told apart by where queries and keys come from, and never by how many there are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import update

import stabilitylens as sl
from stabilitylens.run import Run

D, HEADS, TARGET = 16, 2, 8
SEEN = ("max_attn_logit", "attn_entropy", "query_norm", "masked_rows")


def padding(length: int) -> Tensor:
    """True where a source position is padding."""
    hidden = torch.zeros(3, length, dtype=torch.bool)
    hidden[1, length // 2 :] = True
    return hidden


def oracle(q: Tensor, k: Tensor, visible: Tensor, scale: float, rows: Tensor | None = None) -> dict[str, list[float]]:
    """Per head, in float64, of the rows that see a key; ``rows`` are those that count, shape (batch, query)."""
    q, k = q.detach().double(), k.detach().double()
    raw = (scale * q @ k.transpose(-1, -2)).masked_fill(~visible, -torch.inf)
    used = visible.any(-1).expand(raw.shape[:3])
    used = used if rows is None else used & rows[:, None]
    entropy = torch.where(used, torch.special.entr(raw.softmax(-1).nan_to_num()).sum(-1), 0)
    largest = raw.masked_fill(~used[..., None], -torch.inf).amax((0, 2, 3))
    count = used.sum((0, 2))
    return {
        "max_attn_logit": largest.tolist(), "attn_entropy": (entropy.sum((0, 2)) / count).tolist(),
        "query_norm": (torch.where(used, q.norm(dim=-1), 0).sum((0, 2)) / count).tolist(),
        "masked_rows": (~visible.any(-1).expand(raw.shape[:3])).sum((0, 2)).tolist(),
    }  # fmt: skip


def recorded(model: nn.Module, inputs: tuple, folder, **options) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with sl.attach(model, optimizer, folder, every=1, **options) as lens:
        update(model(*inputs).square().mean(), optimizer, lens)
        assert not lens.guard.failures
    return sl.load(folder)


def compare(run: Run, name: str, want: dict[str, list[float]]) -> None:
    i = run["max_attn_logit"].labels["attention"].index(name)
    for metric in SEEN:
        if metric in run:
            assert run[metric].values[0, i] == pytest.approx(want[metric], abs=1e-4), (name, metric)


def of_torch(attention: nn.MultiheadAttention, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of torch's module, shape (batch, head, position, d)."""
    wq, wk, _ = attention.in_proj_weight.chunk(3)
    bq, bk, _ = attention.in_proj_bias.chunk(3)
    return tuple(F.linear(t, w, b).unflatten(-1, (HEADS, -1)).transpose(1, 2) for t, w, b in ((x, wq, bq), (memory, wk, bk)))


class Translator(nn.Module):
    """torch's own encoder and decoder; what enters each attention is kept."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.t = nn.Transformer(D, HEADS, 2, 2, 32, batch_first=True, dropout=0.0)
        for layer in (*self.t.encoder.layers, *self.t.decoder.layers):
            for attention in (m for m in layer.children() if isinstance(m, nn.MultiheadAttention)):
                attention.in_proj_weight.data.mul_(3)
        self.entered: dict[str, tuple[Tensor, Tensor]] = {}

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = padding(source.shape[1])
        causal = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
        return self.t(source, target, tgt_mask=causal, src_key_padding_mask=hidden, memory_key_padding_mask=hidden)

    def keep(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, nn.MultiheadAttention):
                module.register_forward_pre_hook(lambda m, args, name=name: self.entered.update({name: of_torch(m, *args[:2])}))


@pytest.mark.parametrize("metrics", [None, ["max_attn_logit", "attn_entropy"]], ids=["every metric", "two of them"])
@pytest.mark.parametrize("source", [TARGET, 11])
def test_no_query_of_torchs_decoder_is_dropped_for_padding_of_the_source(source, metrics, tmp_path):
    model, given = Translator(), (torch.randn(3, source, D), torch.randn(3, TARGET, D))
    twin = Translator()
    twin.keep()
    twin(*given)
    run = recorded(model, given, tmp_path, **({"metrics": metrics} if metrics else {}))
    live = ~padding(source)
    for name, (q, k) in twin.entered.items():
        cross, encoder = name.endswith("multihead_attn"), ".encoder." in name
        causal = torch.ones(TARGET, TARGET).tril().bool()
        visible = live[:, None, None, :] if cross or encoder else causal[None, None]
        want = oracle(q, k, visible.expand(3, 1, q.shape[2], -1), q.shape[-1] ** -0.5, live if encoder else None)
        compare(run, name, want)


class Attention(nn.Module):
    """Written by hand as T5 has it: no scale, einsum, the mask as an addend."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        q, k, v = (p(t).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p, t in ((self.q, x), (self.k, memory), (self.v, memory)))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        if hidden is not None:
            scores = scores + hidden[:, None, None, :] * torch.finfo(scores.dtype).min
        self.entered = q, k, hidden
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        return self.o(torch.einsum("bhqk,bhkd->bhqd", weights, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, crosses: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(D) for _ in range(3))
        self.itself, self.other, self.down = Attention(), Attention() if crosses else None, nn.Linear(D, D)

    def forward(self, x: Tensor, memory: Tensor | None, hidden: Tensor | None) -> Tensor:
        h = self.norms[0](x)
        x = x + self.itself(h, h, hidden if self.other is None else None)
        if self.other is not None:
            x = x + self.other(self.norms[1](x), memory, hidden)
        return x + F.gelu(self.down(self.norms[2](x)))


class Like(nn.Module):
    """An encoder and a decoder, of several blocks or of one layer each, which no block is."""

    def __init__(self, in_blocks: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        make = (lambda crosses: nn.ModuleList(Layer(crosses) for _ in range(2))) if in_blocks else (lambda crosses: Layer(crosses))
        self.encoder, self.decoder, self.norm = make(False), make(True), nn.RMSNorm(D)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden, x = padding(source.shape[1]), source
        for layer in self.encoder if isinstance(self.encoder, nn.ModuleList) else [self.encoder]:
            x = layer(x, None, hidden)
        memory, x = self.norm(x), target
        for layer in self.decoder if isinstance(self.decoder, nn.ModuleList) else [self.decoder]:
            x = layer(x, memory, hidden)
        return x


@pytest.mark.parametrize("in_blocks", [True, False])
@pytest.mark.parametrize(("source", "shared"), [(TARGET, False), (TARGET, True), (5, False)])
def test_no_query_of_a_hand_written_decoder_is_dropped_for_padding_of_the_source(source, shared, in_blocks, tmp_path):
    model, x = Like(in_blocks), torch.randn(3, source, D)
    run = recorded(model, (x, x if shared else torch.randn(3, TARGET, D)), tmp_path)
    calls = {name: m for name, m in model.named_modules() if isinstance(m, Attention)}
    assert set(run["max_attn_logit"].labels["attention"]) == calls.keys()
    for name, attention in calls.items():
        q, k, hidden = attention.entered
        live = torch.ones(3, k.shape[2], dtype=torch.bool) if hidden is None else ~hidden
        compare(run, name, oracle(q, k, live[:, None, None, :], 1.0, live if name.startswith("encoder") else None))


class Made(nn.Module):
    """One attention call whose queries and keys are made as ``how`` says."""

    def __init__(self, how) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.q, self.k, self.latent = how, nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.both, self.norm, self.other = nn.Linear(D, 2 * D), nn.LayerNorm(D), nn.RMSNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.how(self, x))
        self.entered = q, k
        return F.scaled_dot_product_attention(q, k, k, attn_mask=~padding(q.shape[2])[:, None, None, :]).transpose(1, 2).flatten(2)


def rotated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * 0.6 + torch.cat((-b, a), -1) * 0.8


ITSELF = {
    "one input": lambda m, x: (m.q(x), m.k(x)),
    "one projection": lambda m, x: m.both(x).chunk(2, -1),
    "normalised twice": lambda m, x: (m.q(m.norm(x)), m.k(m.other(x))),
    "normalised after": lambda m, x: (m.norm(m.q(x)), m.norm(m.k(x))),
    "rotated": lambda m, x: (rotated(m.q(x)), rotated(m.k(x))),
    "from a latent": lambda m, x: (m.q(m.norm(m.latent(x))), m.k(x)),
    "after a residual sum": lambda m, x: (lambda h: (m.q(m.norm(h)), m.k(m.norm(h))))(x + m.latent(x)),
    "of viewed inputs": lambda m, x: (m.q(x.reshape(-1, D)).view(x.shape), m.k(x.flatten(0, 1)).view(x.shape)),
    "of pieces put together": lambda m, x: tuple(torch.cat((p(x)[..., :4], m.latent(x)[..., 4:]), -1) for p in (m.q, m.k)),
    "no projection": lambda m, x: (x, x * 1.5),
}
OTHER = {
    "halves of one tensor": lambda m, x: (m.q(x[:, : x.shape[1] // 2]), m.k(x[:, x.shape[1] // 2 :])),
    "halves of one projection": lambda m, x: (m.both(x)[:, : x.shape[1] // 2, :D], m.both(x)[:, x.shape[1] // 2 :, D:]),
    "halves across a transposed axis": lambda m, x: (
        m.q(x.transpose(1, 2)[..., : x.shape[1] // 2].transpose(1, 2)), m.k(x.transpose(1, 2)[..., x.shape[1] // 2 :].transpose(1, 2)),
    ),
    "shifted": lambda m, x: (m.q(x), m.k(x.roll(1, 1))), "shifted later": lambda m, x: (m.q(x), m.k(x).roll(1, 1)),
    "another batch": lambda m, x: (m.q(x), m.k(x.flip(0))),
    "mixed with something": lambda m, x: (m.q(x), m.k(x + torch.ones_like(x))),
}  # fmt: skip


@pytest.mark.parametrize("how", ITSELF)
def test_padding_is_left_out_where_queries_and_keys_are_known_to_be_of_one_tensor(how, tmp_path):
    model, x = Made(ITSELF[how]), torch.randn(3, TARGET, D)
    run = recorded(model, (x.requires_grad_(),), tmp_path)
    live = ~padding(TARGET)
    compare(run, "", oracle(*model.entered, live[:, None, None, :], (D // HEADS) ** -0.5, live))


@pytest.mark.parametrize("how", OTHER)
def test_no_query_is_dropped_where_positions_may_be_others(how, tmp_path):
    model, x = Made(OTHER[how]), torch.randn(3, 2 * TARGET, D)
    run = recorded(model, (x.requires_grad_(),), tmp_path)
    q, k = model.entered
    compare(run, "", oracle(q, k, ~padding(k.shape[2])[:, None, None, :], (D // HEADS) ** -0.5))


def test_a_compiled_forward_takes_for_padding_what_the_uncompiled_one_does(tmp_path):
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)

        def forward(self, x: Tensor, seen: Tensor) -> Tensor:
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            return x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.blocks = nn.Embedding(10, D), nn.ModuleList(Block() for _ in range(2))

        def forward(self, tokens: Tensor) -> Tensor:
            x, seen = self.embedding(tokens), (tokens > 0)[:, None, None, :]
            for block in self.blocks:
                x = block(x, seen)
            return x

    tokens, runs = torch.randint(1, 10, (3, TARGET)), []
    tokens[1, 4:] = 0
    for compiled in (False, True):
        torch._dynamo.reset()
        model = Encoder()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        with sl.attach(model, optimizer, tmp_path / str(compiled), every=1) as lens:
            run = torch.compile(model, backend="aot_eager") if compiled else model
            update(run(tokens).square().mean(), optimizer, lens)
        runs.append(sl.load(tmp_path / str(compiled)))
    for metric in SEEN:
        assert runs[1][metric].values == pytest.approx(runs[0][metric].values, abs=1e-4), metric
