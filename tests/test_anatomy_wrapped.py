"""Anatomy sees through what is put around a model, says nothing while it looks, and says where two ways differ."""

import warnings
from dataclasses import replace

import outside_models as own
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stabilitylens.hooks.anatomy import read_anatomy, reader
from stabilitylens.hooks.anatomy.autograd_walk import walk
from stabilitylens.hooks.anatomy.probes import probe

TOKENS = torch.zeros(2, 8, dtype=torch.long)
BARE = read_anatomy(own.Model(), TOKENS)


@pytest.fixture()
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_data_parallel(group):
    assert read_anatomy(nn.parallel.DistributedDataParallel(own.Model()), TOKENS) == BARE


def test_compiled_after_data_parallel(group):
    assert read_anatomy(torch.compile(nn.parallel.DistributedDataParallel(own.Model())), TOKENS) == BARE


def test_compiled():
    assert read_anatomy(torch.compile(own.Model()), TOKENS) == BARE


def test_fully_sharded_trains_on(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = own.Model(), init_device_mesh("cpu", (1,))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
    assert read_anatomy(model, TOKENS) == BARE
    model(TOKENS).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p is not model.blocks[0].after[0].g and p.dim() > 1)


def test_adapters():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(own.Model(), peft.LoraConfig(target_modules=["qkv", "up"], r=2))
    anatomy = read_anatomy(model, TOKENS)
    assert replace(anatomy, n_parameters=0, layers=(), sub_layers=(), attention_calls=()) == replace(
        BARE, n_parameters=0, layers=(), sub_layers=(), attention_calls=()
    )
    assert [(sub.layer, sub.kind) for sub in anatomy.sub_layers] == [(sub.layer, sub.kind) for sub in BARE.sub_layers]


class Checkpointed(own.Model):
    reentrant = True

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.final(x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_without_a_warning(reentrant):
    model = Checkpointed()
    model.reentrant = reentrant
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert read_anatomy(model, TOKENS) == BARE
    assert not heard
    graph = walk(model.eval(), (TOKENS,), {})
    assert (graph is None) is reentrant


def test_where_two_ways_disagree_the_field_is_uncertain(monkeypatch):
    other = own.Model("post", final=False).eval()
    monkeypatch.setattr(reader, "walk", lambda *_: walk(other, (TOKENS,), {}))
    assert set(read_anatomy(own.Model(), TOKENS).uncertain) == {"norm_placement", "final_norm"}


def test_a_frozen_model_is_not_walked():
    model = own.Model()
    model.embed.requires_grad_(False)
    assert walk(model, (TOKENS,), {}) is None
    assert read_anatomy(model, TOKENS) == BARE


X = torch.randn(2, 6, 32)
PROBED = {
    "rmsnorm": lambda x: 3 * x / x.square().mean(-1, keepdim=True).sqrt(),
    "layernorm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "l2": lambda x: nn.functional.normalize(x, dim=-1),
    "groupnorm": lambda x: nn.functional.group_norm(x, 2),
    "dyt": lambda x: 2 * torch.tanh(0.7 * x) + 1,
    "derf": lambda x: torch.erf(0.7 * x - 0.3),
}
OTHERS = (torch.relu, torch.sin, torch.sign, lambda x: x, lambda x: x.sort(-1).values, torch.zeros_like, lambda x: x[..., :4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", PROBED)
def test_probes(kind, dtype):
    told, alpha = probe(PROBED[kind], [X.to(dtype)], learned=True)
    assert told == kind or (dtype is torch.bfloat16 and {told, kind} == {"dyt", "derf"})
    if kind in ("dyt", "derf") and dtype is torch.float32:
        assert alpha == pytest.approx(0.7, rel=1e-4)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_probes_of_what_is_no_norm(number):
    assert probe(OTHERS[number], [X], learned=False) == ("", None)


def test_bounded_without_a_learned_factor_is_an_activation():
    assert probe(torch.tanh, [X], learned=False) == ("", None)


def test_attention_is_probed():
    q, k, v = (torch.randn(2, 3, 6, 8) for _ in range(3))
    for attention in (own.fused, own.dot_product, own.distances):
        assert probe(attention, [q, k, v], learned=False)[0] == "attention"
    assert probe(lambda a, b, c: a * b + c, [q, k, v], learned=False)[0] == ""
