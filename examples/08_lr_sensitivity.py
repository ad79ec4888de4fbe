"""How much the final loss depends on the learning rate, and which rule warns first: python examples/08_lr_sensitivity.py"""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import stabilitylens as sl


def make_model() -> nn.Module:
    """A small Transformer; any module of yours will do."""
    layer = nn.TransformerEncoderLayer(32, 4, 128, batch_first=True, norm_first=True, dropout=0.0)
    return nn.Sequential(nn.Embedding(64, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 64))


def data() -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one run: each word is to be replaced by the one before it."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        words = torch.randint(0, 64, (16, 16), generator=generator)
        yield words, words.roll(1, 1)


print(sl.lr_sensitivity(make_model, data, lrs=[1e-3, 1e-2, 1e-1], logdir=sys.argv[1] if len(sys.argv) > 1 else None))
