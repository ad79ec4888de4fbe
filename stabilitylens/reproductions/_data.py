"""Data that every machine has: the standard library's source, synthetic tasks, scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stabilitylens.demo.text import batches, standard_library
from stabilitylens.errors import BadInput
from stabilitylens.reproductions._place import device

Task = Literal["text", "copy", "induction", "digits"]
Batch = tuple[Tensor, Tensor]
#: no loss is taken where the target is this
IGNORED = -100


@cache
def _text() -> Tensor:
    return standard_library()


def copy_task(steps: int, batch: int, length: int, vocabulary: int, seed: int) -> Iterator[Batch]:
    """Random words, then the same again: only the second half can be told, and only it has targets."""
    generator = torch.Generator().manual_seed(seed)
    half = length // 2
    for _ in range(steps):
        words = torch.randint(vocabulary, (batch, half), generator=generator).repeat(1, 2)
        targets = words.roll(-1, 1)
        targets[:, : half - 1], targets[:, -1] = IGNORED, IGNORED
        yield words, targets


def induction_task(steps: int, batch: int, length: int, vocabulary: int, seed: int) -> Iterator[Batch]:
    """Random words; the last one stood somewhere before, and what followed it there is the target."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(batch)
    for _ in range(steps):
        words = torch.randint(1, vocabulary, (batch, length), generator=generator)
        place = torch.randint(length - 2, (batch,), generator=generator)
        words[rows, place], words[:, -1] = 0, 0  # word 0 stands at these two places only
        targets = torch.full_like(words, IGNORED)
        targets[:, -1] = words[rows, place + 1]
        yield words, targets


@cache
def digits() -> tuple[Float[Tensor, "image patch pixel"], Int[Tensor, " image"]]:
    """The 1,797 images of 8×8 pixels as 16 patches of 2×2, from −1 to 1, with their digits.

    Raises:
        BadInput: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise BadInput("the digits come with scikit-learn, which is missing: pip install scikit-learn") from error
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32) / 8 - 1
    patches = images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
    return patches, torch.tensor(found.target)


def _digit_batches(steps: int, batch: int, seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    patches, labels = digits()
    for _ in range(steps):
        chosen = torch.randint(len(labels), (batch,), generator=generator)
        yield patches[chosen], labels[chosen]


def data(task: Task, steps: int, batch: int, length: int, vocabulary: int, seed: int) -> Iterator[Batch]:
    """``steps`` batches of inputs and targets of one of the tasks."""
    if task == "text":
        found = batches(_text(), steps, batch, length, seed)
    elif task == "copy":
        found = copy_task(steps, batch, length, vocabulary, seed)
    elif task == "induction":
        found = induction_task(steps, batch, length, vocabulary, seed)
    else:
        found = _digit_batches(steps, batch, seed)
    for inputs, targets in found:
        yield inputs.to(device()), targets.to(device())
