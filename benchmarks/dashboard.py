"""How fast the stability tab opens, draws and follows, and what it takes, beside TensorBoard's own scalar tab on the same runs.

    python -m benchmarks.dashboard [--full]

Two sizes: 1,000,000 layer-steps (12,500 samples of 80 layers), and 80 layers x 64 heads, of which ``--full`` records 20,000
samples of four metrics (1.7 GB) instead of 2,000. Times are of Debian's Chromium, from asking for the page, or for another
map, to the drawn pixels. Memory is what TensorBoard's processes hold for themselves (RssAnon), without what they map of files.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from stabilitylens.header import Header, MetricMeta
from stabilitylens.writers.recording import RunWriter
from tests.browser.driving import Tab, chromium, tensorboard

LAYERS, HEADS = 80, 64
BY_HEAD = ("max_attn_logit", "attn_entropy_ratio", "query_norm", "key_norm")
BY_LAYER = ("resid_rms", "resid_grad_norm")
#: where one value is larger than all others
SPIKE = 0.6, 41, 7


def record(folder: Path, samples: int, by_head: tuple[str, ...], by_layer: tuple[str, ...]) -> None:
    """A run with a spike of one sample in one head."""
    rng = np.random.default_rng(0)
    axes = {name: ("attention head",) for name in by_head} | {name: ("layer",) for name in by_layer}
    names = tuple(f"blocks.{i}" for i in range(LAYERS))
    metrics = {name: MetricMeta(name, "1", where, f"what {name} is") for name, where in axes.items()}
    writer = RunWriter(folder)
    writer.header(Header(metrics=metrics, labels={"layer": names, "attention": names}))
    at, layer, head = int(SPIKE[0] * samples), SPIKE[1], SPIKE[2]
    for step in range(samples):
        arrays = {f"{name}/attention_head": 1 + rng.random((LAYERS, HEADS), dtype=np.float32) for name in by_head}
        arrays |= {f"{name}/layer": 1 + rng.random(LAYERS, dtype=np.float32) for name in by_layer}
        for name, array in arrays.items():
            array[(layer, head) if name.endswith("head") else layer] *= 40.0 if step == at else 1.0
        writer.step(step, {"loss": 2 + 0.01 * float(rng.random())})
        writer.sample(step, arrays)
    writer.close()


def held(port: int) -> float:
    """MiB that the TensorBoard at a port and its children hold for themselves."""
    mine = [p for p in psutil.Process().children(recursive=True) if any(str(port) in word for word in p.cmdline())]
    every = {child for p in mine for child in (p, *p.children(recursive=True))}
    return sum(_anonymous(process.pid) for process in every) / 1024


def _anonymous(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def own(tab: Tab) -> float:
    """Seconds from the tab's own beginning, in its frame, to its first map."""
    return float(tab.js("return performance.getEntriesByName('map')[0].startTime / 1000;"))


def followed(tab: Tab, folder: Path, samples: int) -> float:
    """Seconds from another sample on the disk to its map."""
    tab.js("const { set } = await own('state.js'); set({ zoom: null, row: null });")
    writer = RunWriter(folder, resume_step=samples)
    arrays = {name: np.ones((LAYERS, HEADS) if name.endswith("head") else LAYERS) for name in tab.js(
        "const { state } = await own('state.js'); return state.about.get('run').maps.map((series) => series.name);")}
    writer.step(samples, {"loss": 2.0})
    writer.sample(samples, arrays)
    writer.close()
    begin = time.perf_counter()
    tab.js("""
        const { state } = await own("state.js");
        const last = () => { const map = state.maps.get("run"); return map.last[map.columns - 1]; };
        while (last() < argument) await new Promise((r) => setTimeout(r, 20));
    """, samples)
    return time.perf_counter() - begin


def drawn(tab: Tab, change: str) -> float:
    """Seconds from a change of what is shown to its map on the canvas."""
    return float(tab.js(f"""
        const {{ set, state, on }} = await own("state.js");
        const begin = performance.now();
        const before = state.maps;
        set({change});
        while (state.maps === before) await new Promise((r) => setTimeout(r, 5));
        await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
        return (performance.now() - begin) / 1000;
    """))


def visible(tab: Tab, samples: int) -> bool:
    """Whether the spike's row has the brightest colour somewhere near its step at full zoom-out."""
    at, layer = int(SPIKE[0] * samples), SPIKE[1]
    colours = [tab.colour(layer, at + offset * samples / 1000) for offset in range(-2, 3)]
    return any(red > 200 and green > 200 and blue < 90 for red, green, blue in colours)


def measure(folder: Path, samples: int, first: str, second: str) -> Iterator[str]:
    """Lines on one run."""
    size = sum(file.stat().st_size for file in folder.rglob("*.sl")) / 2**20
    yield f"{folder.name}: {samples:,} samples of {LAYERS} layers, {size:,.0f} MiB of arrays"
    with chromium() as browser, tensorboard(folder) as address:
        port = int(address.rpartition(":")[2])
        before = held(port)
        begin = time.perf_counter()
        tab = Tab(browser, address)
        cold = time.perf_counter() - begin
        yield f"  opened for the first time: {tab.first_map:.2f} s to the first map with TensorBoard's page, {own(tab):.2f} s without"
        yield f"  until everything is judged: {cold:.2f} s"
        yield f"  the spike is visible at full zoom-out: {visible(tab, samples)}"
        begin = time.perf_counter()
        tab.page.reload()
        tab.frame.locator("canvas").first.wait_for()
        yield f"  opened again: {time.perf_counter() - begin:.2f} s to the first map with TensorBoard's page, {own(tab):.2f} s without"
        tab.settled()
        yield f"  another metric, first time: {drawn(tab, '{ series: ' + repr(second) + ' }'):.2f} s"
        yield f"  and back: {drawn(tab, '{ series: ' + repr(first) + ' }'):.2f} s"
        yield f"  zoomed to a tenth: {drawn(tab, f'{{ zoom: [{samples // 2}, {samples // 2 + samples // 10}] }}'):.2f} s"
        if "head" in first:
            yield f"  heads of a layer: {drawn(tab, '{ zoom: null, row: 41 }'):.2f} s"
        yield f"  one more sample is on the screen after {followed(tab, folder / 'run', samples):.2f} s"
        yield f"  TensorBoard holds {held(port):.0f} MiB, {before:.0f} before the tab was opened"
        tab.check()
        yield from stock(browser, address)


def stock(browser: Any, address: str) -> Iterator[str]:
    """TensorBoard's own scalar tab on the same run."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    begin = time.perf_counter()
    page.goto(f"{address}/#scalars")
    page.locator("tf-scalar-card").first.wait_for(timeout=120_000)
    page.locator("vz-line-chart2").first.wait_for(timeout=120_000)
    yield f"  TensorBoard's own scalar tab, to its first charts: {time.perf_counter() - begin:.2f} s (at most 1,000 points a tag)"
    page.close()


def main() -> None:
    """Record and measure both sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    full = parser.parse_args().full
    with tempfile.TemporaryDirectory() as folder:
        sizes = [("million", 12_500, (), BY_LAYER), ("heads", 20_000 if full else 2_000, BY_HEAD, ())]
        for name, samples, by_head, by_layer in sizes:
            path = Path(folder) / name
            record(path / "run", samples, by_head, by_layer)
            names = [f"{metric}/attention_head" for metric in by_head] + [f"{metric}/layer" for metric in by_layer]
            for line in measure(path, samples, names[0], names[1]):
                print(line, flush=True)


if __name__ == "__main__":
    main()
