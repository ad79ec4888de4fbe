"""What the recording costs: time a call, bytes a sample, reading speed, queries on the mapped arrays.

    python -m benchmarks.run_format [--full]

``--full`` records 20,000 samples of every array of 80 layers x 64 heads (2.7 GB) instead of 2,000.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stabilitylens.header import Header, MetricMeta
from stabilitylens.run import load
from stabilitylens.writers.recording import RunWriter

LAYERS, HEADS = 80, 64
ATTENTION = ("max_attn_logit", "attn_entropy", "attn_entropy_ratio", "query_norm", "key_norm", "value_norm")
BY_LAYER = (
    "resid_rms", "resid_absmax", "resid_grad_norm", "nonfinite_count", "grad_norm", "grad_norm_clipped", "param_norm",
    "update_ratio", "update_rms", "adam_rms", "adam_eps_share",
)
BY_GROUP = BY_LAYER[4:]
SCALARS = {"loss": 2.5, "lr": 3e-4, "grad_norm": 0.7, "grad_norm_clipped": 0.7, "step_time": 0.31}


def header() -> Header:
    """A header of every metric above."""
    axes = {name: ("attention head",) for name in ATTENTION}
    axes |= {name: ("", "layer", "group") if name in BY_GROUP else ("layer",) for name in BY_LAYER}
    names = tuple(f"blocks.{i}" for i in range(LAYERS))
    metrics = {name: MetricMeta(name, "1", where, f"what {name} is") for name, where in axes.items()}
    return Header(metrics=metrics, labels={"layer": names, "attention": names})


def sample(generator: np.random.Generator) -> dict[str, np.ndarray]:
    """A sampled step of an 80-layer model with 64 heads."""
    out = {f"{name}/attention_head": generator.random((LAYERS, HEADS)) for name in ATTENTION}
    out |= {f"{name}/layer": generator.random(LAYERS) for name in BY_LAYER}
    out |= {f"{name}/group": generator.random(3) for name in BY_GROUP}
    return out | {"log_z": np.float64(1.0)}


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def size(folder: Path) -> int:
    """Bytes of all files of a recording."""
    return sum(file.stat().st_size for file in (folder / "stabilitylens").iterdir())


def writing(folder: Path) -> None:
    """Time and bytes a call."""
    writer = RunWriter(folder)
    writer.header(header())
    steps = [timed(lambda i=i: writer.step(i, SCALARS)) for i in range(20_000)]
    print(f"step(), {len(SCALARS)} scalars: median {np.median(steps) * 1e6:.1f} us, mean {np.mean(steps) * 1e6:.1f} us")
    arrays, before = sample(np.random.default_rng(0)), size(folder)
    samples = [timed(lambda i=i: writer.sample(i, arrays)) for i in range(200)]
    elements = sum(array.size for array in arrays.values())
    each, budget = (size(folder) - before) / len(samples), 12_000 + 4.5 * elements
    print(f"sample(), {len(arrays)} arrays of {elements} elements: median {np.median(samples) * 1e3:.2f} ms")
    print(f"bytes a sample, both files: {each:.0f} (budget {budget:.0f})")
    writer.close()


def reading(folder: Path) -> None:
    """Speed of reading scalars, checksums verified."""
    writer = RunWriter(folder)
    for i in range(200_000):
        writer.step(i, SCALARS)
    writer.close()
    print(f"load, 1,000,000 scalars at 5 a record: {timed(lambda: load(folder)):.2f} s")


def mapping(folder: Path, steps: int) -> None:
    """Queries on the mapped array of one metric."""
    writer, generator = RunWriter(folder), np.random.default_rng(0)
    arrays = sample(generator)
    for i in range(steps):
        writer.sample(i, arrays)
    writer.close()
    begin = time.perf_counter()
    values = load(folder)["max_attn_logit"].values
    print(f"load, {LAYERS} layers x {HEADS} heads x {steps} steps, {size(folder) / 1e9:.2f} GB: "
          f"{time.perf_counter() - begin:.2f} s")
    print(f"  one head over all steps: {timed(lambda: values[:, 40, 7].copy()) * 1e3:.1f} ms")
    print(f"  maximum, layer x step: {timed(lambda: values.max(axis=2)) * 1e3:.1f} ms")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description="What the recording costs.")
    parser.add_argument("--full", action="store_true", help="20,000 samples instead of 2,000 (2.7 GB)")
    steps = 20_000 if parser.parse_args().full else 2_000
    with tempfile.TemporaryDirectory() as folder:
        writing(Path(folder) / "writing")
        reading(Path(folder) / "reading")
        mapping(Path(folder) / "mapping", steps)


if __name__ == "__main__":
    main()
