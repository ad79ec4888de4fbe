"""Small training runs for tests: models, loops, and the same run with and without a lens."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import stabilitylens as sl

VOCABULARY = 64


def tokens(batch: int = 2, length: int = 16) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, length))


class Attention(nn.Module):
    """Causal self-attention, by torch's function or written by hand, with or without QK-Norm."""

    def __init__(self, d: int, heads: int, dropout: float = 0.1, by_hand: bool = False, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.qkv, self.out, self.dropout = nn.Linear(d, 3 * d), nn.Linear(d, d), dropout
        make_norm = functools.partial(nn.RMSNorm, d // heads) if qk_norm else nn.Identity
        self.query_scale, self.key_scale = make_norm(), make_norm()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = self.query_scale(q), self.key_scale(k)
        p = self.dropout if self.training else 0.0
        if self.by_hand:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            y = F.dropout(scores.masked_fill(hidden, float("-inf")).softmax(-1), p) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A Pre-LN block."""

    def __init__(self, d: int, heads: int, dropout: float = 0.1, **attention: bool) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d), Attention(d, heads, dropout, **attention)
        self.norm2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Decoder(nn.Module):
    """A small decoder whose call returns the loss on its own input.

    ``recompute`` is ``""``, ``"full"``, ``"reentrant"`` or ``"selective"``.
    """

    def __init__(self, d: int = 32, heads: int = 4, depth: int = 3, recompute: str = "", **block: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, d)
        self.blocks = nn.ModuleList(Block(d, heads, **block) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCABULARY, bias=False)
        self.recompute = recompute

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        if not self.recompute:
            return block(x)
        if self.recompute != "selective":
            return checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
        contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        for block in self.blocks:
            h = self.run(block, h)
        return F.cross_entropy(self.head(self.norm(h))[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def keep_products(_context: object, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    """A policy that saves products and raises on what it does not know, as strict policies do."""
    known = str(op).startswith(("aten.", "stabilitylens."))
    assert known, f"unexpected operation {op}"
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


def gpt2(attention: str = "sdpa") -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=3, n_head=4, attn_implementation=attention)
    return GPT2LMHeadModel(config)


def llama(attention: str = "sdpa", **options: object) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    config = LlamaConfig(vocab_size=VOCABULARY, attn_implementation=attention, **({"attention_dropout": 0.1} | shape | options))
    return LlamaForCausalLM(config)


class EncoderClassifier(nn.Module):
    """torch's own encoder with a head; ``frozen`` runs it in eval mode without gradients, on its fused path."""

    def __init__(self, frozen: bool = False, norm_first: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=not norm_first)
        self.head = nn.Linear(32, 3)
        self.frozen = frozen
        if frozen:
            for p in [*self.embedding.parameters(), *self.encoder.parameters()]:
                p.requires_grad_(False)

    def train(self, mode: bool = True) -> EncoderClassifier:
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.zeros_like(x, dtype=torch.bool)
        padding[0, x.shape[1] // 2 :] = True
        h = self.encoder(self.embedding(x), src_key_padding_mask=padding)
        return F.cross_entropy(self.head(h.mean(1)), x[:, 0] % 3)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """The loss of our own models and of transformers' alike."""
    out = model(x) if not hasattr(model, "config") else model(input_ids=x, labels=x)
    return out if isinstance(out, Tensor) else out.loss


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, lens: sl.Lens | None = None) -> None:
    """A loss's gradients and a step along them; the lens, if any, is told when the gradients are ready."""
    loss.backward()
    if lens:
        lens.grads_ready()
    optimizer.step()
    optimizer.zero_grad()


def update(loss: Tensor, optimizer: torch.optim.Optimizer, lens: sl.Lens | None = None, *, ready: bool = True) -> None:
    """A whole step of a plain loop, ``lens.step`` included; ``ready=False`` is a loop without ``grads_ready``."""
    descend(loss, optimizer, lens if ready else None)
    if lens:
        lens.step(loss)


def one_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    lens: sl.Lens | None,
    x: Tensor | None = None,
    loss: Callable[[nn.Module, Tensor], Tensor] = loss_of,
) -> Tensor:
    """The loss of a step that lacks nothing but ``lens.step``."""
    value = loss(model, tokens() if x is None else x)
    descend(value.mean(), optimizer, lens)
    return value


@dataclass
class Outcome:
    """What a run left behind, all of it compared to the bit."""

    losses: list[Tensor] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)
    rng: Tensor | None = None

    def assert_equals(self, other: Outcome) -> None:
        assert len(self.losses) == len(other.losses)
        for i, (a, b) in enumerate(zip(self.losses, other.losses, strict=True)):
            assert torch.equal(a, b), f"loss {i}: {a} is not {b}"
        for name, value in self.state.items():
            assert torch.equal(value, other.state[name]), f"{name} differs"
        assert torch.equal(self.rng, other.rng), "the random state differs"


def train(
    make: Callable[[], nn.Module],
    logdir: Path | None = None,
    *,
    steps: int = 20,
    every: int = 1,
    autocast: bool = False,
    lr: float = 1e-3,
    loss: Callable[[nn.Module, Tensor], Tensor] = loss_of,
) -> Outcome:
    """Train from a fixed seed, with a lens where there is a log directory."""
    torch.manual_seed(0)
    model = make().train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr)
    outcome = Outcome()
    lens = sl.attach(model, optimizer, logdir, every=every) if logdir else None
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(model, tokens())
        value.backward()
        if lens:
            lens.grads_ready()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if lens:
            lens.step(value)
        outcome.losses.append(value.detach().clone())
    if lens:
        assert not lens.guard.failures, lens.guard.failures
        lens.close()
    outcome.state = {k: v.clone() for k, v in model.state_dict().items()}
    outcome.rng = torch.get_rng_state()
    return outcome


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
