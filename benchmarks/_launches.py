"""The launches of the package's kernels, caught on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
SIZES = (256, 1000, 1024, 4096, 8192, 16384, 32768, 65536)
ROWS = 4096


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
    x, w = _empty(ROWS, d, dtype=DTYPES[dtype]), _empty(d, dtype=DTYPES[dtype])
    b = w if kind == "layer" else None
    flat = _empty(ROWS)
    caught: list[Launch] = []
    names = ("norm_forward", "norm_forward_wide", "norm_backward", "norm_backward_rows", "norm_backward_columns")
    patches = [patch.object(norm, name, _Catcher(getattr(norm, name), caught)) for name in names]
    patches += [patch.object(shapes, "has_clusters", lambda _: clusters), patch.object(shapes, "programs", lambda *_: 264)]
    for p in patches:
        p.start()
    try:
        if direction == "forward":
            norm.forward(x, None, w, b, 1e-6, mode, 2 if statistics else 0)
        else:
            norm.backward(x, None, x, w, b is not None, flat, flat, mode, statistics)
    finally:
        for p in patches:
            p.stop()
    for launch in caught:
        if "STAGES" in launch.arguments:
            launch.arguments["STAGES"] = 2
    return caught


def _input_statistics(d: int, dtype: str, clusters: bool) -> list[Launch]:
    caught = _norm(d, dtype, "rms", "forward", True, clusters)
    caught[0].arguments["STATISTICS"] = 1
    return caught


def _squash(dtype: str, erf: bool, direction: str, statistics: bool, clusters: bool) -> list[Launch]:
    from stabilitylens.kernels._gpu import squash_launch as s

    x, w, a, caught = _empty(ROWS, 4096, dtype=DTYPES[dtype]), _empty(4096), _empty(), []  # type: ignore[var-annotated]
    with patch.object(s, "squash_forward", _Catcher(s.squash_forward, caught)), patch.object(s, "squash_backward", _Catcher(s.squash_backward, caught)):
        if direction == "forward":
            s.forward(x, a, a if erf else None, w, w, erf, False, statistics)
        else:
            with patch.object(s.shapes, "programs", lambda *_: 264):
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


def _pair(dtype: str, statistics: bool, clusters: bool) -> list[Launch]:
    from stabilitylens.kernels._gpu import norm

    caught: list[Launch] = []
    q, w = _empty(ROWS, 128, dtype=DTYPES[dtype]), _empty(128, dtype=DTYPES[dtype])
    with patch.object(norm, "pair_forward", _Catcher(norm.pair_forward, caught)):
        norm.pair(q, q, w, w, 1e-6, norm.Mode(False, 1), 2 if statistics else 0)
    return caught


FAMILIES: dict[str, Callable[..., list[Launch]]] = {
    "norm": _norm, "input": _input_statistics, "squash": _squash, "attention": _attention, "tensors": _tensors, "pair": _pair,
}  # fmt: skip


def launches(case: Case, clusters: bool) -> list[Launch]:
    """What the package launches for a case."""
    return FAMILIES[case.family](clusters=clusters, **dict(case.options))


def _case(family: str, label: str, wide: bool = True, **options: Any) -> Case:
    return Case(label, family, tuple(options.items()), wide)


def _others(dtypes: tuple[str, ...]) -> Iterator[Case]:
    for dtype in dtypes:
        for erf in (False, True):
            for direction in ("forward", "backward"):
                for s in (False, True):
                    label = f"{'derf' if erf else 'dyt'} {direction} d=4096 {dtype}{' statistics' if s else ''}"
                    yield _case("squash", label, wide=False, dtype=dtype, erf=erf, direction=direction, statistics=s)
        for s in (False, True):
            yield _case("pair", f"qk-norm forward d=128 {dtype}{' statistics' if s else ''}", dtype=dtype, statistics=s)
        yield _case("tensors", f"many tensors {dtype}", wide=False, dtype=dtype)
    for dtype in ("bf16", "fp32"):
        for d in (64, 128):
            for keys in (64, 128):
                for bias in (False, True) if dtype == "bf16" and keys == 64 else (False,):
                    label = f"attention {'128' if dtype == 'bf16' else '64'}x{keys if dtype == 'bf16' else 32 if d == 64 else 16} D={d} {dtype}{' bias cap' if bias else ''}"
                    if dtype == "bf16" or keys == 64:  # fp32 has a tile of its own
                        yield _case("attention", label, wide=False, dtype=dtype, d=d, keys=keys, bias=bias)


def cases(diagonal: bool) -> list[Case]:
    """Everything, or a few of it."""
    found = list(_others(("bf16", "fp32")))
    for dtype in DTYPES:
        for d in SIZES if dtype != "fp16" else (4096,):  # whose code is that of bf16 but for the casts
            for kind in ("rms", "layer"):
                for direction in ("forward", "backward"):
                    for s in (False, True):
                        label = f"{kind} {direction} d={d} {dtype}{' statistics' if s else ''}"
                        found.append(_case("norm", label, d=d, dtype=dtype, kind=kind, direction=direction, statistics=s))
            if d in (1024, 4096, 8192):
                found.append(_case("input", f"rms forward d={d} {dtype} input statistics", d=d, dtype=dtype))
    return found[5::17] if diagonal else found
