"""Every kernel that is compiled ahead of time, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks._launches import DTYPES, Case

SIZES = (256, 1000, 1024, 4096, 8192, 16384, 32768, 65536)


def _case(family: str, label: str, wide: bool = True, **options: Any) -> Case:
    return Case(label, family, tuple(options.items()), wide)


#: row lengths of DyT and Derf and of QK-Norm; their kernels read columns in blocks of up to 1024, and whole rows
SQUASHED, PAIRED = (256, 1000, 4096, 65536), (64, 128, 4096, 16384)


def _others(dtypes: tuple[str, ...]) -> Iterator[Case]:
    for dtype in dtypes:
        for erf in (False, True):
            for d in SQUASHED:
                for direction in ("forward", "backward"):
                    for s in (False, True):
                        label = f"{'derf' if erf else 'dyt'} {direction} d={d} {dtype}{' statistics' if s else ''}"
                        yield _case("squash", label, wide=False, d=d, dtype=dtype, erf=erf, direction=direction, statistics=s)
        for d in PAIRED:
            for s in (False, True):
                yield _case("pair", f"qk-norm forward d={d} {dtype}{' statistics' if s else ''}", d=d, dtype=dtype, statistics=s)
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
    return found[5::17] if diagonal else found
