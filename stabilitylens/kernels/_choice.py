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
    return all(t.is_cuda and t.device == given[0].device for t in given)


def fits(x: Tensor, *vectors: Tensor | None, scalars: tuple[Tensor | None, ...] = ()) -> bool:
    """Whether the parameters of a norm have the shapes that its kernels read: one number a feature, or one alone.

    What does not fit goes to plain PyTorch, which raises its own error, or broadcasts.
    """
    if not x.dim() or not x.shape[-1]:
        return False
    return all(v is None or v.shape == x.shape[-1:] for v in vectors) and all(s is None or s.numel() == 1 >= s.dim() for s in scalars)


def added(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both as they are added, expanded to one shape; None where they can't be, or where their sum has another dtype than x."""
    if x.dtype is not residual.dtype:
        return None
    if x.shape == residual.shape:
        return x, residual
    try:
        shape = torch.broadcast_shapes(x.shape, residual.shape)
    except RuntimeError:
        return None
    return x.expand(shape), residual.expand(shape)


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
