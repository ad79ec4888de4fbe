"""Norms, attention statistics and norms of many tensors on the CPU, against what the memory and PyTorch allow.

    python -m benchmarks.norms [--threads 1] [--quick]

Bandwidths count the bytes that must move once; the share is that of a copy measured in the same minute. The NumPy
table is the one that is often quoted for RMSNorm against LayerNorm: its factor of two is that of the passes that each
makes, not of the norms.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from stabilitylens.kernels import sums_of_squares
from stabilitylens.kernels.attention_statistics import Visibility, reduced_rows
from stabilitylens.norms import LayerNorm, RMSNorm

REPEATS = 9


def seconds(*calls: Callable[[], object]) -> list[float]:
    """The median CPU time of each of several calls, taken in turn: what else runs on the machine counts little."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, times in zip(calls, taken, strict=True):
            began = time.process_time()
            call()
            times.append((time.process_time() - began) / torch.get_num_threads())
    return [float(np.median(times[1:])) for times in taken]


def copy_bandwidth(n: int = 1 << 26) -> float:
    """Bytes read and written a second by a copy."""
    a, b = torch.rand(n), torch.empty(n)
    return 8 * n / seconds(lambda: b.copy_(a))[0]


def numpy_layer(x: np.ndarray) -> np.ndarray:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def numpy_layer_in_three_passes(x: np.ndarray) -> np.ndarray:
    h = x - x.mean(-1, keepdims=True)
    return h / np.sqrt(np.einsum("ij,ij->i", h, h)[:, None] / x.shape[-1] + 1e-5)


def numpy_rms(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def numpy_rms_without_squares(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / x.shape[-1] + 1e-6)


def numpy_table() -> None:
    print("\nNumPy, 1000 rows: the quoted ratio LayerNorm / RMSNorm, and with no pass too many in either")
    for d in (256, 1024, 4096):
        x = np.random.default_rng(0).standard_normal((1000, d)).astype(np.float32)
        a, b, c, e = seconds(*(lambda f=f, x=x: f(x) for f in (numpy_layer, numpy_rms, numpy_layer_in_three_passes, numpy_rms_without_squares)))  # type: ignore[misc]
        print(f"  d={d:5}: {1e3 * a:7.2f} / {1e3 * b:6.2f} ms = {a / b:.2f};  {1e3 * c:7.2f} / {1e3 * e:6.2f} ms = {c / e:.2f}")


def norm_table(copied: float, sizes: tuple[int, ...]) -> None:
    print(f"\nnorms forward, fp32, 32 MiB of rows: GB/s (share of the copy's {copied / 1e9:.1f} GB/s)")
    for d in sizes:
        x = torch.randn((1 << 23) // d, d)
        w, b = torch.ones(d), torch.zeros(d)
        rms, layer = RMSNorm(d), LayerNorm(d)
        spelled = torch.compile(lambda t, w=w: w * (t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6)))
        calls = {
            "torch rms_norm": lambda x=x, w=w, d=d: F.rms_norm(x, (d,), w, 1e-6),
            "torch layer_norm": lambda x=x, w=w, b=b, d=d: F.layer_norm(x, (d,), w, b),
            "compiled rms": lambda x=x, f=spelled: f(x),
            "ours RMSNorm": lambda x=x, f=rms: f(x),
            "ours LayerNorm": lambda x=x, f=layer: f(x),
        }  # fmt: skip
        with torch.no_grad():
            for call in calls.values():
                call()
            times = seconds(*calls.values())
        rates = [8 * x.numel() / t for t in times]
        print(f"  d={d:5}: " + ", ".join(f"{n} {r / 1e9:.1f} ({r / copied:.0%})" for n, r in zip(calls, rates, strict=True)))


def attention_table(lengths: tuple[int, ...]) -> None:
    print("\nattention statistics (largest, log-sum-exp, entropy), causal, d_head 64, 4 heads: time over one SDPA forward")
    for n in lengths:
        q, k, v = (torch.randn(1, 4, n, 64) for _ in range(3))
        view = Visibility(causal=True)
        with torch.no_grad():
            a, b = seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), lambda: reduced_rows(q, k, 0.125, view, None))  # noqa: B023
        print(f"  S={n:5}: {1e3 * b:8.1f} / {1e3 * a:8.1f} ms = {b / a:.2f}")


def tensor_table(copied: float) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())
    tensors = [p.detach() for p in model.parameters()]
    n = sum(t.numel() for t in tensors)
    flat = torch.cat([t.flatten() for t in tensors])
    read = 4 * n / seconds(lambda: flat.sum())[0]
    exact = torch.stack([t.double().square().sum() for t in tensors])
    some = exact > 0
    worst = float((sums_of_squares(tensors) / exact - 1)[some].abs().max())
    ours, foreach = seconds(lambda: sums_of_squares(tensors), lambda: torch._foreach_norm(tensors))
    rate, worst_foreach = 4 * n / ours, float((torch.stack(torch._foreach_norm(tensors)).double() ** 2 / exact - 1)[some].abs().max())
    print(f"\nnorms of {len(tensors)} tensors, {n / 1e6:.0f}M parameters, fp32: {1e3 * ours:.1f} ms, {rate / 1e9:.1f} GB/s, {rate / read:.0%} of reading it once")
    print(f"  by sum ({read / 1e9:.1f} GB/s); the copy moves {copied / 1e9:.1f} GB/s; worst error {worst / 2:.1e} of a norm; _foreach_norm {1e3 * foreach:.1f} ms, {worst_foreach / 2:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    copied = copy_bandwidth()
    print(f"{options.threads} thread, torch {torch.__version__}; a copy moves {copied / 1e9:.1f} GB/s")
    numpy_table()
    norm_table(copied, (1024, 4096) if options.quick else (256, 1024, 4096, 16384))
    attention_table((1024,) if options.quick else (1024, 2048, 4096))
    tensor_table(copied)


if __name__ == "__main__":
    main()
