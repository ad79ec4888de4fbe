"""Where models and data are put: the CPU, unless a scaled run has a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_devices = [torch.device("cpu")]


def device() -> torch.device:
    """Where to put what is measured."""
    return _devices[-1]


@contextmanager
def placed(where: torch.device) -> Iterator[None]:
    """Measure on a device inside the block."""
    _devices.append(where)
    try:
        yield
    finally:
        _devices.pop()
