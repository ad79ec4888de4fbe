"""What a lens costs: CPU time of a step with it over that of a step without it, in one process, alternating.

    python -m benchmarks.overhead [--rows default idle …] [--pairs 200] [--threads 1]

Copies of one model train side by side on the same batches, one step each in turn: bare, one for each row of that model, and
bare again, which is what the machine's noise makes of a ratio of one. Printed are the ratios of the mean and of the median CPU time of a
step, with the half-width of a 95 % interval of the mean's. Without ``--rows`` the whole table is measured (hours).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

import stabilitylens as sl
from benchmarks.loops import SETTINGS, Attach, Loop, Ours, ours
from benchmarks.memory import peaks
from benchmarks.peers import installed

#: steps before the clock starts, of each copy
WARM_UP = 10
GRADIENTS = ("grad_norm", "grad_norm_clipped", "grad_rms", "param_norm", "update_ratio", "update_rms")
NEVER = 10**9


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    setting: str
    what: str
    attach: Attach
    limit: float | None = None
    compiled: bool = False


def table() -> dict[str, Row]:
    """Every row by name."""
    rows = {
        "idle": Row("llama-4x256", "attached, not sampling", ours(every=NEVER), 1.005),
        "default": Row("llama-4x256", "every=10, every metric", ours(), 1.03),
        "dense": Row("llama-4x256", "every=1, every metric", ours(every=1), 1.25),
        "gradients": Row("llama-4x256", "every=1, gradients and updates", ours(every=1, metrics=GRADIENTS), 1.05),
        "idle-compiled": Row("llama-4x256", "compiled, not sampling", ours(every=NEVER), 1.005, True),
        "blackbox": Row("llama-4x256", "black box, not sampling", ours(every=NEVER, blackbox=True), 1.01),
        "snapshots": Row("llama-4x256", "black box, a snapshot each 10th step", ours(every=NEVER, blackbox=sl.BlackBox(snapshot_every=10))),
        "default-compiled": Row("llama-4x256", "compiled, every=10", ours(), 1.03, True),
        "default-vit": Row("vit-s", "every=10, every metric", ours(), 1.03),
        "dense-vit": Row("vit-s", "every=1, every metric", ours(every=1)),
        "default-12x768": Row("gpt2-12x768", "every=10, every metric", ours(), 1.03),
        "dense-12x768": Row("gpt2-12x768", "every=1, every metric", ours(every=1), 1.15),
    }
    return rows | {name: Row("llama-4x256", f"{name}, its defaults", attach) for name, attach in installed().items()}


def ratio(a: list[float], b: list[float]) -> str:
    """Mean and median of a over those of b, and the half-width of a 95 % interval of the first."""
    pairs = [x / y for x, y in zip(a, b, strict=True)]
    width = 1.96 * statistics.stdev(pairs) / len(pairs) ** 0.5
    return f"{statistics.fmean(a) / statistics.fmean(b):.3f} ± {width:.3f} | {statistics.median(a) / statistics.median(b):.3f}"


def measure(rows: list[Row], pairs: int, minutes: float) -> Iterator[str]:
    """A line of the table for each observer of one setting: limit, mean and median against bare, bare against bare."""
    stop = time.monotonic() + 60 * minutes
    setting = SETTINGS[rows[0].setting]
    torch.manual_seed(0)
    model = setting.make()
    with tempfile.TemporaryDirectory() as folder:
        kinds = (None, *(row.attach for row in rows), None)
        loops = [Loop(model, attach, Path(folder) / str(i), compiled=rows[0].compiled) for i, attach in enumerate(kinds)]
        for i in track(range(pairs + WARM_UP), rows[0].setting, console=Console(stderr=True)):
            batch = setting.batch()
            for loop in loops if i % 2 else reversed(loops):
                loop.step(batch)
            if time.monotonic() > stop and i > WARM_UP:
                break
        bare, *seen, again = (loop.seconds[WARM_UP:] for loop in loops)
        for loop in loops:
            loop.close()
    for row, mine in zip(rows, seen, strict=True):
        limit = f"{row.limit:.3f}" if row.limit else ""
        yield f"| {row.setting} | {row.what} | {limit} | {ratio(mine, bare)} | {ratio(again, bare)} | {1e3 * statistics.fmean(bare):.0f} | {len(bare)} |"


def side_by_side(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that share their bare copies: those of one setting in eager mode; compiled copies would share a cache of graphs."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.what if row.compiled else row.setting, []).append(row)
    return list(groups.values())


def seconds_of(call: Callable[[], object], times: int) -> float:
    """Median CPU time of a call."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def idle_calls(setting: str, compiled: bool = False) -> str:
    """What the lens does in a step that is not sampled, call by call, over a bare step."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(SETTINGS[setting].make(), ours(every=NEVER), Path(folder), compiled=compiled)
        batch = SETTINGS[setting].batch()
        for _ in range(WARM_UP):
            loop.step(batch)
        loss = loop.forward(**batch).loss
        loss.backward()
        assert isinstance(loop.observer, Ours)
        lens = loop.observer.lens

        def step() -> None:
            loop.observer.before_clipping(loss)
            lens._updates._before_update(loop.optimizer, (), {})
            lens._updates._after_update(loop.optimizer)
            loop.observer.after_update(loss)

        hook = seconds_of(lambda: lens._entry._enter(loop.model, ()), 2000)
        norm = seconds_of(lambda: lens._parameters.gradients("grad", keep=False), 200)
        mine, bare = seconds_of(step, 200) + 2 * hook, statistics.median(loop.seconds[WARM_UP // 2 :])
        loop.close()
    return (
        f"{setting}: the calls of a step that is not sampled take {1e3 * mine:.2f} ms ({1e3 * norm:.2f} ms of it the gradient norm, "
        f"{1e6 * hook:.1f} µs a hook) of {1e3 * bare:.0f} ms: ratio {1 + mine / bare:.4f}"
    )


def graphs() -> str:
    """Graph breaks and recompilations of an observed model that is compiled."""
    import torch._dynamo.utils as dynamo

    torch._dynamo.reset()
    setting = SETTINGS["llama-4x64"]
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(setting.make(), ours(every=2), Path(folder), compiled=True)
        for _ in range(3):
            loop.step(setting.batch())
        first = dynamo.counters["stats"]["unique_graphs"]
        for _ in range(9):
            loop.step(setting.batch())
        breaks = sum(dynamo.counters["graph_break"].values())
        loop.close()
        return f"compiled: {breaks} graph breaks, {dynamo.counters['stats']['unique_graphs'] - first} recompilations after the third step"


def layers(repeats: int = 8) -> Iterator[str]:
    """What a sampled step costs beyond a bare one, by depth."""
    for depth in (4, 16, 64):
        setting = SETTINGS[f"llama-{depth}x64"]
        with tempfile.TemporaryDirectory() as folder:
            model = setting.make()
            loops = [Loop(model, None, Path(folder)), Loop(model, ours(every=1), Path(folder))]
            for _ in range(repeats + 3):
                batch = setting.batch()
                for loop in loops:
                    loop.step(batch)
            extra = statistics.median(loops[1].seconds[3:]) - statistics.median(loops[0].seconds[3:])
            loops[1].close()
        yield f"{depth} layers of width 64: a sampled step costs {1e3 * extra:.1f} ms more, {1e3 * extra / depth:.2f} ms a layer"


def written(setting: str) -> str:
    """Bytes that a sampled step writes beyond an ordinary one, and the array elements in it."""
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(SETTINGS[setting].make(), ours(every=2), Path(folder))
        sizes = []
        for _ in range(6):
            loop.step(SETTINGS[setting].batch())
            sizes.append(sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file()))
        loop.close()
        elements = sum(s.values[-1].size for s in sl.load(folder).values() if s.axes)
    size = (sizes[5] - sizes[4]) - (sizes[4] - sizes[3])
    return f"{setting}: a sampled step writes {size} bytes for {elements} array elements: {(size - 4.5 * elements) / 1024:.1f} KB + 4.5 x elements"


def main() -> None:
    rows = table()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after that long a model, with the pairs there are")
    parser.add_argument("--rows", nargs="*", choices=[*rows, "calls", "graphs", "layers", "written", "memory"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    wanted = [*rows, "calls", "graphs", "layers", "written", "memory"] if options.rows is None else options.rows
    print(f"torch {torch.__version__}, {options.threads} thread(s), {options.pairs} pairs")
    print("| model | observer | limit | mean | median | bare/bare mean | median | bare step, ms | pairs |\n|---|---|---|---|---|---|---|---|---|")
    for group in side_by_side(rows[name] for name in wanted if name in rows):
        print(*measure(group, options.pairs, options.minutes), sep="\n", flush=True)
    extra: dict[str, Callable[[], Iterator[str]]] = {
        "calls": lambda: map(idle_calls, ("llama-4x256", "gpt2-12x768")),
        "graphs": lambda: iter([graphs()]),
        "layers": layers,
        "written": lambda: map(written, ("llama-4x256", "llama-64x64")),
        "memory": lambda: peaks("gpt2-12x768"),
    }
    for name in (n for n in wanted if n in extra):
        print(*extra[name](), sep="\n", flush=True)


if __name__ == "__main__":
    main()
