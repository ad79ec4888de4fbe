"""What custom kernels hide is found by probing, or said not to be seen."""

import numpy as np
import torch
from anatomy_models import D, Decoder
from torch import nn

from stabilitylens.hooks.anatomy import read_anatomy


class Hidden(torch.autograd.Function):
    """As custom kernels do, it fills memory behind PyTorch's back."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        out.numpy()[...] = x.numpy() / x.square().mean(-1, keepdim=True).sqrt().numpy()
        return out


class Kernel(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return Hidden.apply(x)


def test_a_norm_in_a_custom_kernel_is_known_by_what_it_does():
    anatomy = read_anatomy(Decoder(["pre"] * 2, norm=Kernel))
    assert (anatomy.norm_placement, anatomy.norm_kind, anatomy.final_norm) == ("pre", "rmsnorm", True)
    assert anatomy.uncertain == ()


class Sorted(Hidden):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        out.numpy()[...] = np.sort(x.numpy(), -1)
        return out


class SortingKernel(Kernel):
    def forward(self, x):
        return Sorted.apply(x)


def test_what_a_custom_kernel_hides_is_said():
    model = Decoder(["pre"] * 2)
    model.blocks[0].before[0] = SortingKernel(D)
    anatomy = read_anatomy(model)
    assert anatomy.n_layers == anatomy.n_attention == 2
    assert {"norm_placement", "qk_norm"} <= set(anatomy.uncertain)
    assert any("blocks.0.before.0" in note for note in anatomy.notes)
