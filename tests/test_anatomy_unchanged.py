"""Reading a model leaves it as it was, and fails on none."""

import copy

import pytest
import torch
from anatomy_models import D, Decoder, mlp
from torch import nn

from stabilitylens.errors import BadInput
from stabilitylens.hooks.anatomy import read_anatomy


class Untidy(Decoder):
    """Does in its forward all that a reading must not leave behind."""

    def __init__(self):
        super().__init__(["pre"] * 2)
        self.register_buffer("seen", torch.zeros(1))
        self.statistics, self.cache, self.dropout = nn.BatchNorm1d(D), [], nn.Dropout(0.5)
        self.blocks[0].eval()

    def forward(self, tokens):
        self.seen += 1
        self.cache.append(tokens)
        self.last = tokens
        torch.rand(3)
        self.statistics(self.embed(tokens).flatten(0, 1))
        return self.dropout(super().forward(tokens))


def test_reading_changes_nothing():
    model = Untidy()
    before, flags = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    attributes, random = set(vars(model)), torch.get_rng_state()
    anatomy = read_anatomy(model, torch.zeros(2, 6, dtype=torch.long))
    assert anatomy.n_layers == 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert flags == [m.training for m in model.modules()]
    assert (set(vars(model)), model.cache) == (attributes, [])
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not torch.nn.modules.module._global_forward_hooks and not torch.nn.modules.module._global_forward_pre_hooks
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_failing_forward_leaves_the_model_as_it_was():
    class Broken(Untidy):
        def forward(self, tokens):
            super().forward(tokens)
            raise RuntimeError("no such luck")

    model = Broken()
    anatomy = read_anatomy(model, torch.zeros(2, 6, dtype=torch.long))
    assert anatomy.norm_placement is None
    assert "no such luck" in anatomy.notes[0] and "example_inputs" in anatomy.notes[0]
    assert anatomy.layers == ("blocks.0", "blocks.1")
    assert model.seen.item() == 0 and model.cache == [] and model.training


@pytest.mark.parametrize("model", [nn.Linear(3, 3), nn.Identity(), mlp(), nn.LSTM(4, 4), nn.Module(), nn.ModuleList()])
def test_other_models_are_read_without_an_error(model):
    anatomy = read_anatomy(model)
    assert not anatomy.n_attention and anatomy.notes


def test_what_is_no_model_is_refused():
    with pytest.raises(BadInput, match="torch.nn.Module"):
        read_anatomy("gpt2")


def test_wrappers_and_compiled_blocks():
    model = Decoder(["pre"] * 2)
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    anatomy = read_anatomy(nn.DataParallel(model))
    assert anatomy.layers == ("blocks.0", "blocks.1")
    assert [call.module for call in anatomy.attention_calls] == ["blocks.0.attention", "blocks.1.attention"]
