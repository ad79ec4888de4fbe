"""choose_norm: the fastest correct implementation of a norm on the hardware at hand."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from stabilitylens.errors import BadInput
from stabilitylens.kernels._choice import HAS_TRITON
from stabilitylens.kernels.layer_norm import layer_norm, layer_norm_reference
from stabilitylens.kernels.rms_norm import rms_norm, rms_norm_reference

Implementation = Callable[[Tensor, Tensor, float], Tensor]
#: of each norm, by name; ``kernel`` is Triton's and runs on GPUs only
IMPLEMENTATIONS: dict[str, dict[str, Implementation]] = {
    "rms_norm": {
        "spelled_out": lambda x, w, eps: rms_norm_reference(x, w, None, eps, "fp32"),
        "torch": lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, eps),
        "kernel": lambda x, w, eps: rms_norm(x, w, None, eps, "fp32"),
    },
    "layer_norm": {
        "torch": lambda x, w, eps: layer_norm_reference(x, w, None, eps),
        "kernel": lambda x, w, eps: layer_norm(x, w, None, eps),
    },
}
#: microseconds of a forward of 4096 rows, by device, norm, d and dtype; a CPU's on one thread. What is not here is timed when asked
TIMES: dict[tuple[str, str, int, torch.dtype], dict[str, float]] = {}
ROWS, REPEATS = 4096, 5


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _seconds(call: Callable[[], Tensor], device: torch.device) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best


def _is_correct(implementation: Implementation, reference: Implementation, x: Tensor, w: Tensor) -> bool:
    exact = reference(x.double(), w.double(), 1e-6)
    limit = 4 * torch.finfo(x.dtype).eps * float(exact.abs().max())
    return bool((implementation(x, w, 1e-6).double() - exact).abs().max() <= limit)


@torch.no_grad()
def time_norms(device: torch.device, d: int, dtype: torch.dtype, kind: str) -> dict[str, float]:
    """Microseconds of a forward of each correct implementation, kept in the table."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, d, generator=generator).to(device, dtype)
    w = (1 + 0.1 * torch.randn(d, generator=generator)).to(device, dtype)
    times = {}
    for name, implementation in IMPLEMENTATIONS[kind].items():
        if name == "kernel" and not (device.type == "cuda" and HAS_TRITON):
            continue
        if _is_correct(implementation, next(iter(IMPLEMENTATIONS[kind].values())), x, w):
            times[name] = 1e6 * _seconds(lambda: implementation(x, w, 1e-6), device)  # noqa: B023
    TIMES[_device_name(device), kind, d, dtype] = times
    return times


def choose_norm(
    device: torch.device | str, d: int, dtype: torch.dtype, kind: str = "rms_norm", *, refresh: bool = False
) -> str:
    """The name in ``IMPLEMENTATIONS[kind]`` of the fastest implementation that is right within rounding.

    Args:
        device: where it is to run.
        d: size of the last axis.
        dtype: of the input.
        kind: ``rms_norm`` or ``layer_norm``.
        refresh: time them again, even if the table knows.

    Raises:
        BadInput: the kind is unknown.
    """
    if kind not in IMPLEMENTATIONS:
        raise BadInput(f"there is no choice of {kind!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    device = torch.device(device)
    times = TIMES.get((_device_name(device), kind, d, dtype))
    if times is None or refresh:
        times = time_norms(device, d, dtype, kind)
    return min(times, key=times.__getitem__)
