"""TensorBoard as a process, and Debian's Chromium on its stability tab."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCREENSHOTS = Path(os.environ.get("STABILITYLENS_SCREENSHOTS", ROOT / "build" / "screenshots"))
#: milliseconds; on a machine that others use too, a page may take long, which says nothing
PATIENCE = 60_000


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def tensorboard(logdir: Path, *options: str) -> Iterator[str]:
    """The address of a TensorBoard on a log directory."""
    port = _free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", str(port), "--host", "127.0.0.1", "--reload_interval", "1"]
    with open(logdir.parent / f"tensorboard-{port}.log", "w") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        try:
            _wait(f"http://127.0.0.1:{port}/", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "TensorBoard has ended"
        try:
            urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("TensorBoard does not answer")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium; on Debian: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page on the stability tab, which keeps what went wrong and what was asked for."""

    def __init__(self, browser: Any, address: str, *, theme: str = "light", width: int = 1400, height: int = 1000) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.address = address
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}") or dialog.dismiss())
        begin = time.perf_counter()
        self.page.goto(f"{address}/#stabilitylens")
        self.frame = self.page.frame_locator("iframe")
        self.frame.locator("canvas").first.wait_for()
        self.first_map = time.perf_counter() - begin
        self.settled()

    def settled(self) -> None:
        """Wait until maps, curves and verdicts of the chosen runs are there."""
        self.frame.locator("canvas").first.wait_for()
        self.frame.locator(".loss .main-svg").first.wait_for()
        self.frame.locator(".headlines a").first.wait_for()
        self.frame.locator(".headlines").filter(has_not_text="judging").wait_for()

    def js(self, body: str, argument: Any = None) -> Any:
        """Run the body of an async function in the tab; ``own(name)`` is one of its modules."""
        own = "const own = (name) => import(new URL(name, document.baseURI));"
        return self.frame.locator("body").evaluate(f"async (root, argument) => {{ {own} {body} }}", argument)

    def colour(self, row: int, step: float, panel: int = 0) -> tuple[int, int, int]:
        """Of the pixel in the middle of a row of a map, at a step."""
        return tuple(self.js("""
            const [row, step, panel] = argument;
            const { stepAxis } = await own("geometry.js");
            const canvas = document.querySelectorAll("canvas")[panel];
            const ratio = canvas.width / canvas.clientWidth;
            const rows = (canvas.clientHeight - 24) / argument[3];
            const [x, y] = [stepAxis(canvas.clientWidth).x(step), canvas.clientHeight - 24 - (row + 0.5) * rows];
            return [...canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data.slice(0, 3)];
        """, [row, step, panel, self.rows(panel)]))

    def rows(self, panel: int = 0) -> int:
        return int(self.js("const { state } = await own('state.js'); return [...state.maps.values()][argument].rows;", panel))

    def click(self, row: int, step: float, panel: int = 0) -> None:
        """Click a cell."""
        at = self.js("""
            const [row, step, panel, rows] = argument;
            const { stepAxis } = await own("geometry.js");
            const canvas = document.querySelectorAll("canvas")[panel];
            return [stepAxis(canvas.clientWidth).x(step), canvas.clientHeight - 24 - (row + 0.5) * (canvas.clientHeight - 24) / rows];
        """, [row, step, panel, self.rows(panel)])
        self.frame.locator("canvas").nth(panel).click(position={"x": at[0], "y": at[1]})

    def cell(self, words: str) -> str:
        """The caption of the opened cell, once it holds some words."""
        caption = self.frame.locator(".cell figcaption")
        caption.filter(has_text=re.compile(words)).wait_for()
        return str(caption.inner_text())

    def choose(self, *names: str) -> None:
        """Show these runs and no others."""
        self.js("const { set } = await own('state.js'); set({ chosen: argument, maps: new Map(), curves: new Map(), cursor: null, cell: null, zoom: null });", list(names))
        self.js("""
            const { state } = await own("state.js");
            while (state.chosen.some((run) => !state.maps.has(run) || !state.verdicts.has(run))) await new Promise((r) => setTimeout(r, 50));
        """)

    def shoot(self, name: str) -> None:
        """Keep a picture of the page."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.wait_for_timeout(500)
        self.page.screenshot(path=str(SCREENSHOTS / f"{name}.png"))

    def check(self) -> None:
        """No error was logged, and no request left for another machine."""
        assert self.errors == []
        outside = [url for url in self.requests if urlsplit(url).scheme in ("http", "https") and not url.startswith(self.address)]
        assert outside == []

    def close(self) -> None:
        self.context.close()


def is_yellow(colour: tuple[int, int, int]) -> bool:
    """Whether a pixel has the colour of the largest values."""
    return colour[0] > 200 and colour[1] > 200 and colour[2] < 90
