"""Real text that every machine has: the source of the Python standard library, as bytes."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor


def standard_library(size: int = 2_000_000) -> UInt8[Tensor, " byte"]:
    """The first ``size`` bytes of the standard library's modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return torch.frombuffer(text[:size], dtype=torch.uint8)


def batches(
    text: UInt8[Tensor, " byte"], steps: int, batch: int, length: int, seed: int
) -> Iterator[tuple[Int[Tensor, "batch query"], Int[Tensor, "batch query"]]]:
    """Random windows of the text, each with the same window one byte on as its targets."""
    generator = torch.Generator().manual_seed(seed)
    windows = text.unfold(0, length + 1, 1)
    for _ in range(steps):
        rows = windows[torch.randint(len(windows), (batch,), generator=generator)].long()
        yield rows[:, :-1], rows[:, 1:]
