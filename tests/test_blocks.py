"""Blocks are found from structure alone, and named as the user wrote them."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from stabilitylens.hooks.anatomy.blocks import find_blocks  # noqa: E402
from stabilitylens.hooks.names import canonical_names  # noqa: E402


class Mlp(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(d, hidden), nn.Linear(hidden, d)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Block(nn.Module):
    def __init__(self, d=8, experts=0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        if experts:
            self.router = nn.Linear(d, experts)
            self.experts = nn.ModuleList([Mlp(d, 2 * d) for _ in range(experts)])
        else:
            self.mlp = Mlp(d, 4 * d)

    def forward(self, x):
        return x


class Stage(nn.Module):
    def __init__(self, d, depth, last=False):
        super().__init__()
        self.blocks = nn.ModuleList([Block(d) for _ in range(depth)])
        self.narrow = None if last else nn.Linear(d, 2 * d)

    def forward(self, x):
        return x


class Holder(nn.Module):
    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x):
        return x


class Forwarding(Holder):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(next(iter(self.children())), name)


def names(model):
    return [name for name, _ in find_blocks(model)]


def numbered(stem, n):
    return [f"{stem}{i}" for i in range(n)]


@pytest.mark.parametrize("container", [nn.ModuleList, lambda blocks: nn.Sequential(*blocks)])
def test_a_list_of_blocks(container):
    model = Holder(embed=nn.Embedding(9, 8), layers=container([Block() for _ in range(3)]), head=nn.Linear(8, 9))
    assert names(model) == numbered("layers.", 3)


def test_a_dictionary_of_blocks():
    assert names(Holder(h=nn.ModuleDict({"a": Block(), "b": Block()}))) == ["h.a", "h.b"]


def test_the_root_may_be_the_list():
    model = nn.Sequential(nn.Embedding(9, 8), Block(), Block(), nn.LayerNorm(8), nn.Linear(8, 9))
    assert names(model) == ["1", "2"]


def test_numbered_attributes():
    model = Holder(norm1=nn.LayerNorm(8), norm2=nn.LayerNorm(8), block0=Block(), block1=Block(), block2=Block())
    assert names(model) == numbered("block", 3)


def test_experts_are_not_blocks():
    assert names(Holder(layers=nn.ModuleList([Block(experts=6) for _ in range(2)]))) == numbered("layers.", 2)


def test_a_dense_layer_among_mixtures_is_a_block_too():
    assert names(Holder(layers=nn.ModuleList([Block(), Block(experts=4), Block(experts=4)]))) == numbered("layers.", 3)


def test_stages_give_their_blocks():
    model = Holder(stages=nn.ModuleList([Stage(8, 2), Stage(16, 3), Stage(32, 1, last=True)]))
    expected = numbered("stages.0.blocks.", 2) + numbered("stages.1.blocks.", 3) + ["stages.2.blocks.0"]
    assert names(model) == expected


def test_encoder_and_decoder_each_have_theirs():
    model = nn.Transformer(8, 2, num_encoder_layers=2, num_decoder_layers=3, dim_feedforward=16)
    assert names(model) == numbered("encoder.layers.", 2) + numbered("decoder.layers.", 3)


def test_a_shared_block_comes_once():
    block = Block()
    assert names(Holder(layers=nn.ModuleList([block, block, block]))) == ["layers.0"]
    assert names(Holder(groups=nn.ModuleList([Holder(layers=nn.ModuleList([block]))]))) == ["groups.0.layers.0"]


def test_a_single_block():
    assert names(Holder(embed=nn.Embedding(9, 8), block=Block(), head=nn.Linear(8, 9))) == ["block"]
    assert names(Block()) == [""]


def test_heads_and_stems_are_left_out():
    model = Holder(
        stem=nn.ModuleList([Holder(a=nn.Conv1d(8, 8, 1), b=nn.Conv1d(8, 8, 1), norm=nn.LayerNorm(8)) for _ in range(5)]),
        layers=nn.ModuleList([Block() for _ in range(4)]),
        heads=nn.ModuleList([Mlp(8, 8) for _ in range(9)]),
        pooler=nn.ModuleList([Holder(x=nn.Linear(8, 8), y=nn.Linear(8, 8), norm=nn.LayerNorm(8))]),
    )
    assert names(model) == numbered("layers.", 4)


def test_parallel_lists_make_no_block_modules():
    model = Holder(
        attention=nn.ModuleList([nn.MultiheadAttention(8, 2) for _ in range(3)]),
        norms=nn.ModuleList([nn.LayerNorm(8) for _ in range(3)]),
        mlps=nn.ModuleList([Mlp(8, 16) for _ in range(3)]),
    )
    assert names(model) == []


@pytest.mark.parametrize("model", [nn.Linear(3, 3), Mlp(3, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU())])
def test_nothing_repeats(model):
    assert names(model) == []


def test_blocks_on_the_meta_device():
    with torch.device("meta"):
        assert names(Holder(layers=nn.ModuleList([Block(), Block()]))) == numbered("layers.", 2)


def test_wrappers_leave_no_trace_in_names():
    inner = Holder(layers=nn.ModuleList([Holder(_checkpoint_wrapped_module=Block()), Block()]), module=nn.Linear(2, 2))
    model = nn.DataParallel(Holder(_orig_mod=inner))
    assert names(model) == numbered("layers.", 2)
    canonical = canonical_names(model)
    assert canonical["module._orig_mod.layers.0._checkpoint_wrapped_module.qkv.weight"] == "layers.0.qkv.weight"
    assert canonical["module._orig_mod.module.bias"] == "module.bias"
    assert canonical[""] == canonical["module"] == canonical["module._orig_mod"] == ""


def test_a_compiled_block_keeps_its_name():
    model = Holder(layers=nn.ModuleList([torch.compile(Block(), backend="eager") for _ in range(2)]))
    assert names(model) == numbered("layers.", 2)


def test_adapter_and_foreign_wrappers():
    adapted = Forwarding(base_model=Forwarding(model=Holder(layers=nn.ModuleList([Block(), Block()]))))
    assert names(adapted) == numbered("layers.", 2)
    assert canonical_names(Forwarding(module=nn.Linear(2, 2)))["module.weight"] == "weight"


def test_names_of_the_users_own_stay():
    plain = Holder(module=nn.Linear(2, 2), base_model=Holder(model=nn.Linear(2, 2)))
    assert all(path == name for path, name in canonical_names(plain).items())


def test_tied_parameters_and_buffers_are_named_under_each_path():
    model = Holder(embed=nn.Embedding(4, 2), head=nn.Linear(2, 4, bias=False), norm=nn.BatchNorm1d(2))
    model.head.weight = model.embed.weight
    assert {"embed.weight", "head.weight", "norm.running_mean"} <= canonical_names(model).keys()
