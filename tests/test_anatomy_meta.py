"""Without numbers a forward is read all the same: what it asks of values is guessed."""

import pytest
import torch
import torch.nn.functional as F
from anatomy_models import D, Decoder, Rms
from torch import nn

from stabilitylens.hooks.anatomy import read_anatomy


class Experts(nn.Module):
    """Sorts tokens by expert and multiplies each part with that expert's weight."""

    def __init__(self, multiply):
        super().__init__()
        self.router, self.weight = nn.Linear(D, 4), nn.Parameter(torch.randn(4, D, D) / D)
        self.multiply = multiply

    def forward(self, x):
        flat = x.flatten(0, 1)
        expert = self.router(flat).argmax(-1)
        order = expert.argsort()
        counts = torch.zeros(4, dtype=torch.int32, device=x.device).index_add(0, expert, torch.ones_like(expert, dtype=torch.int32))
        mixed = self.multiply(flat[order], self.weight, counts)
        return torch.zeros_like(flat).index_copy(0, order, mixed).view_as(x)


def grouped(x, weight, counts):
    return torch._grouped_mm(x, weight, offs=counts.cumsum(0, dtype=torch.int32))


def split(x, weight, counts):
    return torch.cat([part @ w for part, w in zip(x.split(counts.tolist()), weight, strict=True)])


class Mixture(Decoder):
    def __init__(self, multiply):
        super().__init__(["pre"] * 2)
        for block in self.blocks:
            block.mlp = Experts(multiply)


def on_meta(make, *args, **kwargs):
    with torch.device("meta"):
        return make(*args, **kwargs)


def test_the_meta_device_is_enough():
    anatomy = read_anatomy(on_meta(Decoder, ["peri"] * 3, qk="head", cap=20.0))
    assert (anatomy.norm_placement, anatomy.qk_norm, anatomy.soft_cap) == ("peri", "head", 20.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("multiply", [grouped, split])
def test_experts(multiply, dtype):
    anatomy = read_anatomy(on_meta(Mixture, multiply).to(dtype))
    assert (anatomy.norm_placement, anatomy.n_layers, anatomy.n_attention) == ("pre", 2, 2), anatomy.notes
    assert [s.kind for s in anatomy.sub_layers] == ["attention", "feed_forward"] * 2
    assert anatomy.uncertain == ()


class Careless(Decoder):
    """Makes positions on the CPU, and writes where a condition holds."""

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + torch.linspace(0, 1, x.shape[1], device="cpu")[:, None].expand(-1, D)
        x[tokens == 0] = 0.0
        chosen = x[tokens > 3]
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x)), chosen


def test_a_forward_that_mixes_devices_and_selects_by_value():
    anatomy = read_anatomy(on_meta(Careless, ["post"] * 2, final=False))
    assert (anatomy.norm_placement, anatomy.n_layers, anatomy.final_norm) == ("post", 2, False), anatomy.notes


class Fourier(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x, dim=-2).real.to(x.dtype)


def test_what_half_precision_lacks():
    model = on_meta(Decoder, ["post"] * 2, norm=Rms)
    for block in model.blocks:
        block.attention = Fourier()
    anatomy = read_anatomy(model.bfloat16())
    assert (anatomy.norm_placement, anatomy.n_attention) == ("post", 0), anatomy.notes


def test_a_forward_that_fails_without_numbers_as_with_them_says_so():
    class Broken(Decoder):
        def forward(self, tokens):
            return F.linear(self.embed(tokens), torch.zeros(3, 5, device=tokens.device))

    (note,) = read_anatomy(on_meta(Broken, ["pre"])).notes
    assert note.startswith("not read: its forward raised RuntimeError")
