"""The one place that chooses an implementation: by device, dtype and what is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["auto", "reference", "triton"]
#: what the Triton kernels read and write
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
HAS_TRITON = importlib.util.find_spec("triton") is not None
_BACKEND: Backend = "auto"


def interpreted() -> bool:
    """Whether Triton runs in its interpreter, on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def uses_triton(*tensors: Tensor | None) -> bool:
    """Whether these tensors go to the Triton kernels; all others go to plain PyTorch.

    By default that is CUDA (and ROCm) tensors of 32 and 16 bits where Triton is installed. Nothing on the
    CPU does, unless :func:`backend` asks for it and Triton runs in its interpreter.
    """
    given = [t for t in tensors if t is not None]
    if _BACKEND == "reference" or not HAS_TRITON or any(t.dtype not in DTYPES for t in given):
        return False
    if _BACKEND == "triton" and interpreted():
        return True
    return all(t.is_cuda for t in given)


@contextlib.contextmanager
def backend(name: Backend) -> Iterator[None]:
    """Choose the implementation for the length of a ``with``: ``reference`` is plain PyTorch everywhere.

    Args:
        name: ``auto``, ``reference`` or ``triton`` (on the CPU only in Triton's interpreter).
    """
    global _BACKEND
    before, _BACKEND = _BACKEND, name
    try:
        yield
    finally:
        _BACKEND = before
