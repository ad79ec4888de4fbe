"""choose_norm: the fastest correct implementation of a norm on the hardware at hand."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from stabilitylens.errors import BadInput
from stabilitylens.kernels._choice import HAS_TRITON
from stabilitylens.kernels.layer_norm import layer_norm, layer_norm_reference
from stabilitylens.kernels.rms_norm import rms_norm, rms_norm_reference
from stabilitylens.norms._norm import width
from stabilitylens.norms.timing_table import keep_times, known_times

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
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: rows of a forward that is timed, elements of it at most, and how often it is
ROWS, ELEMENTS, REPEATS = 4096, 2**22, 5


def key_of(device: torch.device, kind: str, d: int, dtype: torch.dtype) -> str:
    """Of one entry of the table: device, PyTorch, norm, dtype, and the power of two that the width goes up to.

    A CPU is timed on as many threads as PyTorch uses.
    """
    cpu = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    return f"{name} | torch {torch.__version__} | {kind} | {str(dtype).removeprefix('torch.')} | {1 << (d - 1).bit_length()}"


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
    """Microseconds of a forward of each correct implementation."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(max(1, min(ROWS, ELEMENTS // d)), d, generator=generator, device="cpu").to(device, dtype)
    w = (1 + 0.1 * torch.randn(d, generator=generator, device="cpu")).to(device, dtype)
    times = {}
    for name, implementation in IMPLEMENTATIONS[kind].items():
        if name == "kernel" and not (device.type == "cuda" and HAS_TRITON):
            continue
        if _is_correct(implementation, next(iter(IMPLEMENTATIONS[kind].values())), x, w):
            times[name] = 1e6 * _seconds(lambda: implementation(x, w, 1e-6), device)  # noqa: B023
    return times


def _device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise BadInput(f"choose_norm() knows no device {device!r}; name cpu or cuda") from None
    if found.type not in ("cpu", "cuda"):
        raise BadInput(f"choose_norm() times norms on cpu and cuda, not on {found.type}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"choose_norm() can't time norms on {found}: PyTorch sees {torch.cuda.device_count()} CUDA devices here")
    return found


def choose_norm(
    device: torch.device | str, d: int, dtype: torch.dtype, kind: str = "rms_norm", *, refresh: bool = False
) -> str:
    """The name in ``IMPLEMENTATIONS[kind]`` of the fastest implementation that is right within rounding.

    Times are kept in ``stabilitylens/norm_times.json`` in the user's cache folder (``XDG_CACHE_HOME``, or ``~/.cache``), by
    device, version of PyTorch, norm, dtype and class of width; what is not there is measured, once. Where the file can't be
    written, they last as long as the process.

    Args:
        device: where it is to run, cpu or cuda.
        d: size of the last axis.
        dtype: of the input: fp64, fp32, bf16 or fp16.
        kind: ``rms_norm`` or ``layer_norm``.
        refresh: time them again, even if the table knows.

    Raises:
        BadInput: there is no such kind or device, or a norm can't have this width or dtype.
    """
    if kind not in IMPLEMENTATIONS:
        raise BadInput(f"there is no choice of {kind!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    if dtype not in DTYPES:
        raise BadInput(f"choose_norm() times norms in {', '.join(map(str, DTYPES))}, not in {dtype!r}")
    device, d = _device(device), width(d)
    key = key_of(device, kind, d, dtype)
    times = {name: time for name, time in (known_times(key) or {}).items() if name in IMPLEMENTATIONS[kind]}
    if refresh or not times:
        times = time_norms(device, d, dtype, kind)
        keep_times(key, times)
    return min(times, key=times.__getitem__)
