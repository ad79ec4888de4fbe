"""The stability tab while runs come, grow and go."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np

from stabilitylens.writers.recording import RunWriter
from tests import run_builders as runs
from tests.browser.driving import PATIENCE, Tab, is_yellow, tensorboard
from tests.test_dashboard import append, record


def test_a_run_that_grows_is_followed(browser: Any, tmp_path: Path) -> None:
    run = runs.logit_growth()
    writer: RunWriter = record(tmp_path / "logs" / "growing", run, until=100)
    with tensorboard(tmp_path / "logs", "--load_fast", "false") as address:
        tab = Tab(browser, address)
        assert tab.js("const { whole } = await own('state.js'); return whole();") == [0, 99]
        thread = threading.Thread(target=append, args=(writer, run, 100, 300))
        thread.start()
        tab.js("""
            const { state, whole } = await own("state.js");
            while (whole()[1] < 299 || state.maps.get("growing").columns < 30) await new Promise((r) => setTimeout(r, 50));
        """)
        thread.join()
        tab.frame.locator(".headlines").filter(has_text="is still rising").wait_for()
        assert is_yellow(tab.colour(2, 290))
        record(tmp_path / "logs" / "later", runs.healthy()).close()
        tab.frame.locator(".picker summary").filter(has_text="of 2 runs").wait_for()
        tab.check()
        tab.close()
    writer.close()


def test_what_is_open_goes_with_its_run(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    for name in ("kept", "lost"):
        record(folder / name, runs.logit_growth()).close()
    with tensorboard(folder, "--load_fast", "false") as address:
        tab = Tab(browser, address)
        tab.choose("lost")
        tab.click(1, 270)
        tab.cell("of lost")
        shutil.rmtree(folder / "lost")
        tab.frame.locator(".cell .note").filter(has_text="Click a cell").wait_for()
        assert not tab.frame.locator(".tip").is_visible() and not tab.frame.locator(".cell .plot").is_visible()
        tab.close()


def test_a_folder_without_recordings_says_so(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    with tensorboard(folder, "--load_fast", "false") as address:
        page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.goto(f"{address}/#stabilitylens")
        frame = page.frame_locator("iframe")
        frame.locator(".loss .note").filter(has_text="No recording below the log directory yet").wait_for(timeout=PATIENCE)
        assert not frame.locator(".loss .plot").is_visible()
        page.context.close()


def test_the_list_of_runs_closes_on_escape_and_the_newest_are_shown_first(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    for i, name in enumerate(("a", "b", "c")):
        record(folder / name, runs.healthy()).close()
        (event,) = (folder / name / "stabilitylens").glob("events.*")
        event.rename(event.with_name(re.sub(r"tfevents\.\d+", f"tfevents.{1_700_000_000 + 100 * (i > 0) + i}", event.name)))
    with tensorboard(folder, "--load_fast", "false") as address:
        tab = Tab(browser, address)
        assert tab.js("const { state } = await own('state.js'); return state.chosen;") == ["b", "c"]
        tab.frame.locator(".picker > summary").click()
        tab.frame.locator(".runlist").wait_for()
        tab.frame.locator(".picker input[type=search]").press("Escape")
        assert not tab.frame.locator(".runlist").is_visible()
        tab.check()
        tab.close()


def test_a_plateau_tints_no_plot_and_the_scrubber_covers_no_map_in_a_narrow_window(browser: Any, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "logs" / "flat")
    rng = np.random.default_rng(0)
    for step in range(200):
        writer.step(step, {"loss": 3.0 + 0.01 * rng.standard_normal()})
        writer.sample(step, {"resid_rms/layer": np.arange(1.0, 7.0)})
    writer.close()
    with tensorboard(tmp_path / "logs", "--load_fast", "false") as address:
        tab = Tab(browser, address, width=400, height=900)
        tab.frame.get_by_text("plateau throughout").wait_for()
        assert tab.frame.locator(".loss .shapelayer path").count() == 0
        assert tab.js("return getComputedStyle(document.querySelector('.scrubber')).position;") == "static"
        tab.shoot("narrow-plateau")
        tab.check()
        tab.close()
