"""The launches of the package's kernels, caught on tensors without memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
#: tokens of a launch, elements where that makes more tokens, multiprocessors of an H200
ROWS, ELEMENTS, PROCESSORS = 16384, 1 << 26, 132


@dataclass(frozen=True)
class Case:
    """A kernel with the arguments of one launch.

    Attributes:
        make: calls the package so that it launches the kernel.
        wide: whether its rows are aligned, so that it must load 128 bits at a time.
    """

    name: str
    family: str
    options: tuple[tuple[str, Any], ...]
    wide: bool = field(default=True)


@dataclass
class Launch:
    """A kernel, its arguments by name, and its launch options."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]


class _Catcher:
    def __init__(self, kernel: Any, caught: list[Launch]) -> None:
        self._kernel, self._caught = kernel, caught

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        options = {k: kwargs.pop(k) for k in ("num_warps", "num_ctas", "maxnreg", "enable_fp_fusion") if k in kwargs}
        self._caught.append(Launch(self._kernel, dict(zip(self._kernel.arg_names, args, strict=False)) | kwargs, options))


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _norm(d: int, dtype: str, kind: str, direction: str, statistics: bool, clusters: bool) -> list[Launch]:
    from stabilitylens.kernels._gpu import norm, shapes

    mode = norm.Mode(True) if kind == "layer" else norm.Mode(False, norm.ROUNDINGS["llama"])
    rows = max(ROWS, ELEMENTS // d)
    x, w = _empty(rows, d, dtype=DTYPES[dtype]), _empty(d, dtype=DTYPES[dtype])
    b = w if kind == "layer" else None
    flat = _empty(rows)
    caught: list[Launch] = []
    names = ("norm_forward", "norm_observed", "norm_forward_wide", "norm_backward", "norm_backward_rows", "norm_backward_columns")
    patches = [patch.object(norm, name, _Catcher(getattr(norm, name), caught)) for name in names]
    patches += [patch.object(shapes, "has_clusters", lambda _: clusters), patch.object(shapes, "programs", lambda *_: 264)]
    patches.append(patch.object(shapes, "processors", lambda _: PROCESSORS))
    with contextlib.ExitStack() as stack:
        for p in patches:
            stack.enter_context(p)
        if direction == "forward":
            norm.forward(x, None, w, b, 1e-6, mode, statistics)
        else:
            norm.backward(x, None, x, w, b is not None, flat, flat, mode, statistics)
    for launch in caught:
        if "STAGES" in launch.arguments:
            launch.arguments["STAGES"] = 2
    return caught


def _squash(d: int, dtype: str, erf: bool, direction: str, statistics: bool, clusters: bool) -> list[Launch]:
    from stabilitylens.kernels._gpu import squash_launch as s

    x, w, a, caught = _empty(max(ROWS, ELEMENTS // d), d, dtype=DTYPES[dtype]), _empty(d), _empty(), []  # type: ignore[var-annotated]
    patches = [patch.object(s, name, _Catcher(getattr(s, name), caught)) for name in ("squash_forward", "squash_observed", "squash_backward")]
    patches += [patch.object(s.shapes, "programs", lambda *_: 264), patch.object(s.shapes, "processors", lambda _: PROCESSORS)]
    with contextlib.ExitStack() as stack:
        for p in patches:
            stack.enter_context(p)
        if direction == "forward":
            s.forward(x, a, a if erf else None, w, w, erf, False, statistics)
        else:
            s.backward(x, x, a, a if erf else None, w, erf, False, statistics)
    return caught


def _attention(dtype: str, d: int, keys: int, bias: bool, clusters: bool) -> list[Launch]:
    from stabilitylens.kernels._gpu import attention_launch as a

    q, span, caught = _empty(2, 8, 4096, d, dtype=DTYPES[dtype]), _empty(4096, dtype=torch.int32), []  # type: ignore[var-annotated]
    added = _empty(1, 1, 4096, 4096, dtype=DTYPES[dtype]) if bias else None
    with patch.object(a, "attention_rows", _Catcher(a.attention_rows, caught)), patch.object(a, "KEYS", keys), patch.object(a, "interpreted", lambda: False):
        a.launch(q, q, span, span, 0.125, None, added, 50.0 if bias else None)
    return caught


def _tensors(dtype: str, clusters: bool) -> list[Launch]:
    from stabilitylens.kernels._gpu.tensors import tensor_chunks
    from stabilitylens.kernels._gpu.tensors_launch import _DTYPES, BLOCK, CHUNK

    table = _empty(64, dtype=torch.int64)
    constants = {"CHUNK": CHUNK, "BLOCK": BLOCK, "DTYPE": _DTYPES[DTYPES[dtype]], "ALIGNED": True}
    named = dict(zip(tensor_chunks.arg_names, [table] * 4 + [_empty(64, 7)], strict=False)) | constants
    return [Launch(tensor_chunks, named, {"num_warps": 4, "enable_fp_fusion": True})]


def _pair(d: int, dtype: str, statistics: bool, clusters: bool) -> list[Launch]:
    from stabilitylens.kernels._gpu import norm, pair, shapes

    caught: list[Launch] = []
    q, w = _empty(max(ROWS, ELEMENTS // d), d, dtype=DTYPES[dtype]), _empty(d, dtype=DTYPES[dtype])
    kernels = [patch.object(pair, name, _Catcher(getattr(pair, name), caught)) for name in ("pair_forward", "pair_observed")]
    with kernels[0], kernels[1], patch.object(shapes, "processors", lambda _: PROCESSORS):
        pair.pair(q, q, w, w, 1e-6, norm.Mode(False, 1), statistics)
    return caught


FAMILIES: dict[str, Callable[..., list[Launch]]] = {
    "norm": _norm, "squash": _squash, "attention": _attention, "tensors": _tensors, "pair": _pair,
}  # fmt: skip


def launches(case: Case, clusters: bool) -> list[Launch]:
    """What the package launches for a case."""
    return FAMILIES[case.family](clusters=clusters, **dict(case.options))
