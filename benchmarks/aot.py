"""Compile every kernel ahead of time for GPUs that are not there, and hold registers and instructions against a baseline.

    python -m benchmarks.aot [--diagonal] [--target sm_90] [--write]

The launches are those of the package: their arguments are caught on tensors without memory and compiled for sm_80,
sm_90 and gfx942. Exit 1 where a kernel spills or keeps a stack, loads less than 128 bits at a time although alignment
allows it, or needs more registers or instructions than benchmarks/aot_baseline.json says (a tenth is allowed for).
Instructions an element are those of the shortest way through a forward kernel, which passes by the branches for NaN and
Inf, a tile, over the elements of it that a thread holds; of the other kernels, and on gfx942, all that there are count.
Launches have 64M elements, at least 16,384 rows. Last comes what statistics add to each forward, beside the least that the machine
has instructions for: a program of several tiles saves some of what one tile a program costs without statistics, and has an end to it.
--write renews the baseline.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks._cases import cases
from benchmarks._compiled import TARGETS, Compiled, compiled
from benchmarks._launches import Case
from stabilitylens.kernels._gpu.shapes import FORWARD_ROW

BASELINE = Path(__file__).with_name("aot_baseline.json")
#: what a baseline may be passed by: registers, and a share of the instructions
REGISTERS, INSTRUCTIONS = 8, 0.1
#: instructions an element that statistics may add to a forward on sm_90: in 16 bits, and in fp32 beyond the least
STATISTICS, FP32_BEYOND = 4.0, 2.0
#: least instructions an element for Σ, Σ² and the largest magnitude. sm_80 and sm_90 add numbers of fp32 one by one; sm_90 has the
#: larger of two magnitudes, then three such at once. In 16 bits tensor cores add up and pairs are compared, on sm_90 three at once.
LEAST = {("fp32", "sm_80"): (1, 1, 1), ("fp32", "sm_90"): (1, 1, 0.75), ("16", "sm_80"): (0.125, 0.5, 0.5), ("16", "sm_90"): (0.125, 0.5, 0.25)}
#: registers of a multiprocessor
FILE = 1 << 16
#: narrow loads that are of a short gain, not of rows
GAINS = 4
#: tiles that the package does not use there, since they do not fit into its registers
TOO_LARGE = {("attention 128x128 D=128 bf16", "sm_80")}


@dataclass(frozen=True)
class Job:
    """One kernel for one target."""

    case: Case
    target: str

    @property
    def name(self) -> str:
        return f"{self.case.name} {self.target}"


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    targets = [options.target] if options.target else list(TARGETS)
    for i, case in enumerate(c for c in cases(options.diagonal) if options.only in c.name):
        for j, target in enumerate(targets):
            if (case.name, target) in TOO_LARGE:
                continue
            if not options.diagonal or i % len(targets) == j:
                yield Job(case, target)


def run(job: Job) -> Compiled:
    return compiled(job.case, job.target)


def complaints(job: Job, found: Compiled, baseline: dict[str, dict]) -> list[str]:
    known = baseline.get(job.name)
    said = []
    if found.spills or found.stack:
        said.append(f"{found.spills} spills, {found.stack} bytes of stack")
    if job.target != "gfx942" and found.registers * found.warps * 32 > FILE:
        said.append(f"{found.registers} registers for each of {found.warps} warps are more than there are")
    if job.case.wide and found.narrow > GAINS:
        said.append(f"{found.narrow} loads of less than 128 bits")
    if known is not None:
        if found.registers > known["registers"] + REGISTERS:
            said.append(f"{found.registers} registers, {known['registers']} in the baseline")
        if found.instructions > known["instructions"] * (1 + INSTRUCTIONS):
            said.append(f"{found.instructions} instructions, {known['instructions']} in the baseline")
    return said


def _in_registers(kernel: str, target: str) -> bool:
    """Whether the rows of a forward fit into registers; on gfx942, where all instructions count, there is nothing to compare."""
    d = re.search(r" forward d=(\d+)", kernel)
    return d is not None and target != "gfx942" and (target == "sm_90" or int(d[1]) <= FORWARD_ROW)


def least(kernel: str, target: str) -> float:
    """Least instructions an element for what a forward does not compute anyway: LayerNorm has Σ and Σ² of its input, RMSNorm Σ²."""
    total, squares, largest = LEAST["fp32" if "fp32" in kernel else "16", target]
    of_input = {"layer": 0.0, "rms": total, "qk-norm": total}.get(kernel.split()[0], total + squares)
    return of_input + total + squares + 2 * largest


def added(found: dict[str, Compiled]) -> int:
    """Print what statistics add to forwards, and the least there is; how many of them add too much."""
    print(f"\n{'instructions an element that statistics add':66} added least")
    failed = 0
    for name, told in found.items():
        kernel, _, target = name.rpartition(" statistics ")
        plain = found.get(f"{kernel} {target}")
        if plain is not None and _in_registers(kernel, target):
            more, floor = told.each - plain.each, least(kernel, target)
            over = target == "sm_90" and more > (floor + FP32_BEYOND if "fp32" in kernel else STATISTICS)
            failed += over
            print(f"{kernel:58} {target:7} {more:5.1f} {floor:5.1f}{'  too many' if over else ''}")
    return failed


def save(baseline: dict[str, dict]) -> None:
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(baseline.items()))
    BASELINE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--diagonal", action="store_true", help="a few kernels, each for one target")
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--only", default="", help="only kernels whose name holds this")
    parser.add_argument("--write", action="store_true", help="write the baseline")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    try:
        import triton  # noqa: F401
    except ImportError as error:
        sys.exit(f"nothing can be compiled: Triton can't be imported ({error}); pip install triton (it is there for Linux), then run this again")
    anew = options.write and not (options.diagonal or options.target or options.only)
    baseline = {} if anew else json.loads(BASELINE.read_text())
    todo, failed, by_name = list(jobs(options)), 0, {}
    print(f"{'kernel':58} {'target':7} warps blocks regs spills stack instr  per el  loads")
    with ProcessPoolExecutor(options.processes) as pool:
        for job, found in zip(todo, pool.map(run, todo), strict=True):
            by_name[job.name] = found
            if options.write:
                baseline[job.name] = asdict(found)
                save(baseline)
            said = complaints(job, found, baseline)
            failed += bool(said)
            print(f"{job.case.name:58} {job.target:7} {found}  {'; '.join(said)}", flush=True)
    failed += added(by_name)
    print(f"{len(todo)} compiled, {failed} with complaints")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
