"""Compile a launch for a GPU that is not there, and read what came out."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._launches import Case, Launch, launches
from benchmarks._sass import instructions, operations

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
_POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8"}
#: kernels of whose instructions only those on the shortest way count, a tile; of the others all that there are
_BY_TILE = {"norm_forward", "norm_observed", "pair_forward", "pair_observed", "squash_forward", "squash_observed"}


@dataclass(frozen=True)
class Compiled:
    """What a kernel needs; of several kernels in a launch, the most."""

    warps: int
    blocks: int
    registers: int
    spills: int
    stack: int
    instructions: int
    each: float
    loads: str
    narrow: int

    def __str__(self) -> str:
        return f"{self.warps:5} {self.blocks:6} {self.registers:4} {self.spills:6} {self.stack:5} {self.instructions:5} {self.each:7.1f}  {self.loads}"


def _source(launch: Launch) -> Any:
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    signature, constants, attributes = {}, {}, {}
    for i, name in enumerate(names):
        value = launch.arguments[name]
        if launch.kernel.params[i].is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], constants[(i,)] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name] = _POINTERS[value.dtype]
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0:
                attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def _tool(*args: str) -> str:
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    return subprocess.run([tool, *args], capture_output=True, text=True, check=True).stdout


def _elements(launch: Launch, lanes: int) -> float:
    """Elements of the main tile that a thread holds."""
    a = launch.arguments
    size = a["BM"] * a["BN"] if "BM" in a else a.get("BLOCK", 0) * a.get("ROWS", 1) or a.get("BLOCK_Q", 1) * a.get("ROWS_Q", 1)
    return float(size) / (lanes * launch.options["num_warps"] * launch.options.get("num_ctas", 1))


def _nvidia(binary: bytes, tiles: int | None) -> tuple[int, int, int, int, Counter[str]]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        usage, sass = _tool("--dump-resource-usage", file.name), _tool("-sass", file.name)
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())  # type: ignore[union-attr]
    ops = operations(sass)
    spills = sum(n for op, n in ops.items() if op.startswith(("LDL", "STL")))
    return registers, spills, stack, sum(ops.values()) if tiles is None else round(instructions(sass, tiles)), ops


def _amd(text: str) -> tuple[int, int, int, int, Counter[str]]:
    number = {n: int(re.search(rf"\.{n}:\s+(\d+)", text)[1]) for n in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size")}  # type: ignore[index]
    ops = Counter(re.findall(r"^\s+([a-z][a-z0-9_]+)\b", text, re.M))
    return number["vgpr_count"], number["vgpr_spill_count"], number["private_segment_fixed_size"], sum(ops.values()), ops


def _loads(ops: Counter[str]) -> tuple[str, int]:
    """Loads by width, and how many of the narrow kind there are beyond a few scalars."""
    found = {op: n for op, n in ops.items() if op.startswith(("LDG", "LDGSTS", "global_load", "buffer_load"))}
    narrow = sum(n for op, n in found.items() if re.search(r"\.(U8|S8|U16|S16)\b|ushort|ubyte|short", op))
    return " ".join(f"{op}:{n}" for op, n in sorted(found.items())), narrow


def _one(launch: Launch, target: str) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget

    if target == "gfx942" and launch.arguments.get("PRECISION") == "tf32x3":
        launch.arguments["PRECISION"] = "ieee"  # as the launch does there
    if target == "gfx942" and "PAIRS" in launch.arguments:
        launch.arguments |= {"PAIRS": False, "THREADS": 64 * launch.options["num_warps"]}
    options = {k: v for k, v in launch.options.items() if target.startswith("sm") or k not in ("num_ctas", "maxnreg")}
    kernel = triton.compile(_source(launch), target=GPUTarget(*TARGETS[target]), options=options)
    tiles = launch.arguments.get("steps", launch.arguments.get("q_steps", 1)) if launch.kernel.fn.__name__ in _BY_TILE else None
    read = _nvidia(kernel.asm["cubin"], tiles) if target.startswith("sm") else _amd(kernel.asm["amdgcn"])
    registers, spills, stack, count, ops = read
    loads, narrow = _loads(ops)
    each = count / _elements(launch, TARGETS[target][2])
    return Compiled(launch.options["num_warps"], launch.options.get("num_ctas", 1), registers, spills, stack, count, round(each, 1), loads, narrow)


def compiled(case: Case, target: str) -> Compiled:
    """Compile what a case launches on a target; clusters are there from sm_90 on."""
    parts = [_one(launch, target) for launch in launches(case, clusters=target == "sm_90")]
    worst = parts[0]
    for other in parts[1:]:
        worst = Compiled(
            worst.warps, worst.blocks, max(worst.registers, other.registers), worst.spills + other.spills,
            max(worst.stack, other.stack), worst.instructions + other.instructions, round(worst.each + other.each, 1),
            worst.loads + " | " + other.loads, worst.narrow + other.narrow,
        )  # fmt: skip
    return worst
