"""Whether RMSNorm is twice as fast as LayerNorm."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float

from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, claim

EPS = 1e-5
#: Llama-3-8B: parameters, width, norms
PARAMETERS, WIDTH, NORMS = 8.03e9, 4096, 65
#: H100 SXM: bytes and BF16 operations a second, https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306
BANDWIDTH, OPERATIONS = 3.35e12, 989e12
#: heuristic: share of the operations that good training reaches
REACHED = 0.4


@dataclass(frozen=True)
class Size:
    """What is normalised, and how often; the fastest time counts."""

    width: int
    elements: int
    times: int


def layer_norm(x: Float[np.ndarray, "row d"], w: Float[np.ndarray, " d"], b: Float[np.ndarray, " d"]) -> Float[np.ndarray, "row d"]:
    """As it is written in NumPy when nobody thinks of passes over memory."""
    out: np.ndarray = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS) * w + b
    return out


def rms_norm(x: Float[np.ndarray, "row d"], w: Float[np.ndarray, " d"]) -> Float[np.ndarray, "row d"]:
    """The same."""
    out: np.ndarray = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * w
    return out


def fastest(work: Callable[[], object], times: int) -> float:
    """Processor seconds of the fastest of some calls, after one that is not timed.

    Wall time would measure what else the machine does: of a long call, more than of a short one.
    """
    work()
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def share_of_a_step() -> float:
    """What fused norms cost of a step of an 8B model: five passes over their bytes, beside six operations a parameter."""
    norms = NORMS * WIDTH * 2 * 5 / BANDWIDTH
    return norms / (norms + 6 * PARAMETERS / (OPERATIONS * REACHED))


def _quantities(table: Table) -> Numbers:
    sizes = list(table.values())
    return {
        "told": min(size["pytorch"] for size in sizes),
        "numpy": min(size["numpy"] for size in sizes),
        "room": max(size["room"] for size in sizes),
        "share": share_of_a_step(),
    }


@claim(
    paper=(
        "Passed on without a source, with 2.13×, 2.08× and 2.02× in NumPy; Zhang and Sennrich 2019, Root Mean Square Layer Normalization, "
        "https://arxiv.org/abs/1910.07467, found 7 to 64 % shorter running times of whole models"
    ),
    says="RMSNorm is twice as fast as LayerNorm.",
    expects=(
        Expect("told", "LayerNorm's time over RMSNorm's, both as PyTorch has them, least over widths 256, 1024, 4096", 1.8),
        Expect("numpy", "the same written out in NumPy, pass by pass: where the figure comes from", 1.5, role="corrected"),
        Expect("room", "fused LayerNorm's time over that of one pass x·w, which no RMSNorm undercuts, most", high=1.7, role="corrected"),
        Expect("share", "share of all 65 norms in a step of an 8B model if they are fused, by arithmetic", high=0.01, role="corrected"),
    ),
    conclude=_quantities,
    quick=Plan({f"ratio@{d}": Size(d, 2**17, 60) for d in (256, 1024, 4096)}, seeds=3, seconds=5),
    full=Plan({f"ratio@{d}": Size(d, 2**18, 200) for d in (256, 1024, 4096)}, seeds=5, seconds=60),
    bigger="Times on a GPU: `python -m benchmarks.norms` has them where there is one.",
    picture=Picture("numpy", "LayerNorm / RMSNorm in NumPy", "width", log_y=False),
)
def rms_norm_speed(cell: Size, seed: int, folder: Path) -> Numbers:
    """RMSNorm is not twice as fast as LayerNorm; written out in NumPy, pass by pass, it looks so.

    Written out, LayerNorm takes more passes over the array. A fused kernel reads and writes once, whichever norm it is. PyTorch
    has a fused LayerNorm on CPUs and composes RMSNorm of several operations. Where the memory decides, as on GPUs, fused norms
    take the time of their bytes; whether it does on one core of a CPU is the third expectation, which was set before it was
    measured and failed at first sight: a core spends more time on LayerNorm's arithmetic than on its bytes. Times are processor times of
    arrays that stay in the cache; at first they were wall times of arrays of 8 MB, and on a busy machine the ratio in NumPy came out
    between 1.3 and 9.
    """
    x = torch.randn(cell.elements // cell.width, cell.width, generator=torch.Generator().manual_seed(seed))
    w, b = torch.ones(cell.width), torch.zeros(cell.width)
    arrays = x.numpy(), w.numpy(), b.numpy()
    fused = fastest(lambda: F.layer_norm(x, (cell.width,), w, b, EPS), cell.times)
    return {
        "pytorch": fused / fastest(lambda: F.rms_norm(x, (cell.width,), w, EPS), cell.times),
        "room": fused / fastest(lambda: x * w, cell.times),
        "numpy": fastest(lambda: layer_norm(*arrays), cell.times) / fastest(lambda: rms_norm(*arrays[:2]), cell.times),
    }
