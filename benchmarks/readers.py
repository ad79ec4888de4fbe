"""``python -m benchmarks.readers [--points N] [--megabytes N …]``: how fast logs are read, beside the parsers that others use, and in how much memory.

An event file of N scalars in ten tags: every checksum verified, every point kept, against TensorBoard's EventAccumulator
told to keep every point. ``trainer_state.json`` against ``json.load``, and a table against ``csv.reader``, both C and both
without making anything of what they parse, each the best of several, turn by turn. The largest resident set of a process that
reads a text log of the shortest lines that tell a step and its loss, at each of the sizes; 2000 is the one that must stay under 500 MB.
"""

from __future__ import annotations

import argparse
import csv
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from google_crc32c import value as crc32c
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2

from stabilitylens.readers import read_all
from stabilitylens.tfrecord import mask

TAGS = ("train/loss", "train/grad_norm", "train/lr", "eval/loss", *(f"layer/{i}" for i in range(6)))


def best_of(repeat: int, call: Callable[[], object]) -> float:
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def write_events(path: Path, points: int) -> None:
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for i, value in enumerate(rng.random(points)):
            event = event_pb2.Event(wall_time=1.7e9 + i, step=i // len(TAGS))
            event.summary.value.add(tag=TAGS[i % len(TAGS)], simple_value=float(value))
            data = event.SerializeToString()
            head = struct.pack("<Q", len(data))
            file.write(head + struct.pack("<I", mask(crc32c(head))) + data + struct.pack("<I", mask(crc32c(data))))


def write_tables(folder: Path, rows: int) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    found = [
        {"epoch": i / rows, "grad_norm": float(g), "learning_rate": 1e-4, "loss": round(float(x), 4), "step": 10 * i}
        for i, (x, g) in enumerate(rng.random((rows, 2)))
    ]
    state, table = folder / "trainer_state.json", folder / "metrics.csv"
    state.write_text(json.dumps({"global_step": 10 * rows, "log_history": found}, indent=2), encoding="utf-8")
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    return state, table


def everything(path: Path) -> EventAccumulator:
    found = EventAccumulator(str(path), size_guidance={"scalars": 0})
    found.Reload()
    return found


def parsed(path: Path) -> int:
    with path.open(newline="") as file:
        return sum(1 for _ in csv.reader(file))


def in_turn(repeat: int, *calls: Callable[[], object]) -> list[float]:
    """The best time of each, so that what else the machine does meets all of them."""
    return [min(times) for times in zip(*([best_of(1, call) for call in calls] for _ in range(repeat)), strict=True)]


MEASURE = """
import sys
from pathlib import Path
from stabilitylens.readers import read_all
(run,) = read_all(Path(sys.argv[1]))
most = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(run["loss"]), int(most.split()[1]) / 1e3)
"""


def write_log(path: Path, megabytes: int) -> int:
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < 1e6 * megabytes:
            file.write("".join(f"step {i} loss {2 + i * 7919 % 1000 / 1e4:.1f}\n" for i in range(rows, rows + 50_000)))
            rows += 50_000
    return rows


def memory(path: Path, megabytes: int) -> str:
    rows, began = write_log(path, megabytes), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], check=True, capture_output=True, text=True)
    found, most = done.stdout.split()
    assert int(found) == rows
    path.unlink()
    return f"text log of {megabytes:,} MB, {rows:,} rows: {float(most):.0f} MB of memory at most, {time.perf_counter() - began:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, nargs="*", default=(200, 400), help="sizes of the text log whose memory is measured")
    asked = parser.parse_args()
    points = asked.points
    with tempfile.TemporaryDirectory() as name:
        events = Path(name) / "events.out.tfevents.1"
        write_events(events, points)
        (run,) = read_all(events)
        assert sum(map(len, run.values())) == points
        ours, theirs = best_of(3, lambda: read_all(events)), best_of(1, lambda: everything(events))
        print(f"event file, {points:,} scalars: {ours:.2f} s; EventAccumulator {theirs:.2f} s; {theirs / ours:.1f} times as fast")
        state, table = write_tables(Path(name), points // 10)
        ours, theirs = in_turn(9, lambda: read_all(state), lambda: json.loads(state.read_bytes()))
        print(f"trainer_state.json, {points // 10:,} rows: {ours:.2f} s; json.loads {theirs:.2f} s; {ours / theirs:.2f} times the time")
        ours, theirs = in_turn(9, lambda: read_all(table), lambda: parsed(table))
        print(f"CSV, {points // 10:,} rows: {ours:.2f} s; csv.reader {theirs:.2f} s; {ours / theirs:.2f} times the time")
        for megabytes in asked.megabytes:
            print(memory(Path(name) / "log.txt", megabytes))


if __name__ == "__main__":
    main()
