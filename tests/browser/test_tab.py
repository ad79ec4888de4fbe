"""The stability tab in a browser, on runs that were really recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest

from tests import run_builders as runs
from tests.browser import recordings
from tests.browser.driving import SCREENSHOTS, Tab, is_yellow, tensorboard
from tests.test_dashboard import record


@pytest.fixture(scope="module")
def logs(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tab") / "logs"
    recordings.train(folder / "calm", qk_norm=True)
    recordings.train(folder / "lr 0.1, without QK-norm", lr=0.1)
    recordings.train(folder / "lr 0.1, with QK-norm", lr=0.1, qk_norm=True)
    recordings.train(folder / "spiked", spike=True)
    record(folder / "grown", runs.logit_growth()).close()
    recordings.hostile(folder)
    return folder


@pytest.fixture(scope="module")
def address(logs: Path) -> Iterator[str]:
    with tensorboard(logs, "--load_fast", "false") as found:
        yield found


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Tab]:
    found = Tab(browser, address)
    yield found
    found.check()
    found.close()


def test_a_spike_of_one_head_is_seen_at_full_zoom_out_and_opened_by_a_click(tab: Tab) -> None:
    tab.choose("spiked")
    layer, step = recordings.SPIKE_LAYER, recordings.SPIKE_STEP
    assert is_yellow(tab.colour(layer, step))
    assert not is_yellow(tab.colour(layer, step - 8)) and not is_yellow(tab.colour(0, step))
    tab.click(layer, step)
    said = tab.cell(f"at step {step}")
    assert f"layer {layer}, head {recordings.SPIKE_HEAD}" in said
    assert "SL201" in tab.frame.locator(".rules").inner_text()
    tab.shoot("spike")
    tab.frame.get_by_text("all heads of this layer").click()
    tab.frame.locator(".maps figcaption").filter(has_text=f"max_attn_logit, layer {layer}").wait_for()
    assert is_yellow(tab.colour(recordings.SPIKE_HEAD, step)) and not is_yellow(tab.colour(0, step))
    tab.shoot("heads")


def test_a_finding_jumps_to_its_cell(tab: Tab) -> None:
    tab.choose("grown")
    finding = tab.frame.locator(".finding[data-code=SL202] button").first
    place = finding.locator(".where").inner_text()
    finding.click()
    said = tab.cell("attn_entropy_ratio of layer 2, head 1")
    assert place.startswith("layer 2, head 1") and "of grown" in said
    assert tab.frame.locator("#metric").input_value() == "attn_entropy_ratio/attention_head"
    assert "SL202" in tab.frame.locator(".rules .error").first.inner_text()
    for verdict in ("not evaluated", "clear"):
        tab.frame.get_by_role("button", name=verdict).click()
        assert tab.frame.locator(".finding.unknown, .finding.clear").count() > 0
    tab.frame.get_by_role("button", name="fired").click()
    before = tab.frame.locator(".finding").count()
    tab.frame.locator(".tabs button.error").click()
    assert 0 < tab.frame.locator(".finding").count() < before


def test_two_runs_on_one_scale_and_their_difference(tab: Tab) -> None:
    tab.choose("calm", "spiked")
    assert tab.frame.locator("canvas").count() == 2
    step, layer = recordings.SPIKE_STEP, recordings.SPIKE_LAYER
    assert is_yellow(tab.colour(layer, step, 1)) and not is_yellow(tab.colour(layer, step, 0))
    tab.shoot("two-runs")
    tab.frame.locator("#view").select_option("difference")
    tab.frame.get_by_text("spiked over calm").wait_for()
    assert tab.frame.locator("canvas").count() == 1
    red, _, blue = tab.colour(layer, step)
    assert red > blue + 60
    tab.shoot("difference")


def test_everything_by_keyboard(tab: Tab) -> None:
    tab.choose("grown")
    canvas = tab.frame.locator("canvas").first
    canvas.focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp"):
        canvas.press(key)
    assert tab.js("const { state } = await own('state.js'); return [state.cursor.row, state.step];") == [1, 270]
    assert "layer 1 (blocks.1.attn), step 270: " in (canvas.get_attribute("aria-description") or "")
    canvas.press("Enter")
    tab.cell("layer 1, head . .*at step 270")
    canvas.press("d")
    tab.frame.locator(".maps figcaption").filter(has_text="layer 1").wait_for()
    tab.frame.locator("canvas").first.press("Escape")
    tab.js("const { state } = await own('state.js'); while (state.maps.get('grown').axis !== 'layer') await new Promise((r) => setTimeout(r, 50));")
    canvas = tab.frame.locator("canvas").first
    canvas.press("+")
    zoomed = tab.js("const { span } = await own('state.js'); return span();")
    assert zoomed[1] - zoomed[0] < 200
    canvas.press("Home")
    assert tab.js("const { span } = await own('state.js'); return span();") == [0, 299]


def test_the_scrubber_says_what_every_run_had(tab: Tab) -> None:
    tab.choose("calm", "spiked")
    slider = tab.frame.get_by_label("step", exact=True)
    slider.evaluate("(slider) => { slider.value = 80; slider.dispatchEvent(new Event('input')); }")
    said = tab.frame.locator(".reading")
    said.filter(has_text="step 80").wait_for()
    assert said.inner_text().count("loss") == 2 and "max_attn_logit worst in layer 1" in said.inner_text()
    assert tab.frame.locator(".frame > .at:not([hidden])").count() == 3


def test_a_loss_spike_is_a_band_and_what_is_no_number_has_its_own_colours(tab: Tab) -> None:
    tab.choose(recordings.HOSTILE)
    tab.frame.locator(".incident").first.wait_for()
    assert tab.frame.locator(".loss .shapelayer path").count() >= 1
    broken = tab.colour(2, 30)
    assert broken[0] > 200 and broken[1] < 60 and broken[2] > 80
    hatched = tab.colour(1, 20)
    assert min(hatched) > 150
    tab.shoot("hostile")


def test_hostile_names_are_text_and_nothing_else(tab: Tab) -> None:
    tab.choose(recordings.HOSTILE)
    tab.click(0, 10)
    tab.cell("at step 10")
    tab.frame.locator("canvas").first.hover(position={"x": 200, "y": 20})
    assert recordings.HOSTILE in tab.frame.locator(".maps figcaption").inner_text()
    assert recordings.HOSTILE in tab.frame.locator(".tip").inner_text()
    tab.frame.locator(".picker summary").click()
    assert recordings.HOSTILE in tab.frame.locator(".runlist").inner_text()
    assert tab.js("return [window.hacked, window.parent.hacked].filter(Boolean).length;") == 0
    assert tab.frame.locator("img, svg[onload], body script:not([type=module])").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_light_and_dark_wide_and_narrow(browser: Any, address: str, theme: str, width: int) -> None:
    tab = Tab(browser, address, theme=theme, width=width)
    tab.choose("calm", "grown")
    assert tab.js("return document.documentElement.dataset.theme;") == theme
    assert tab.js("const { scrollWidth, clientWidth } = document.scrollingElement; return scrollWidth - clientWidth;") <= 0
    ink, ground = tab.js("const style = getComputedStyle(document.body); return [style.color, style.backgroundColor].map((c) => c.match(/\\d+/g).map(Number));")
    assert contrast(ink, ground) > 7
    tab.shoot(f"{theme}-{width}")
    tab.js("window.scrollTo(0, 1000);")
    tab.shoot(f"{theme}-{width}-below")
    tab.check()
    tab.close()


def contrast(one: list[float], two: list[float]) -> float:
    """WCAG's contrast ratio, https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio."""
    linear = [np.where(c <= 0.03928, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in (np.array(one) / 255, np.array(two) / 255)]
    dark, light = sorted(float(np.dot(c[:3], (0.2126, 0.7152, 0.0722))) for c in linear)
    return (light + 0.05) / (dark + 0.05)


def test_the_report_of_a_run_opens_as_a_page(tab: Tab) -> None:
    tab.choose("grown")
    with tab.context.expect_page() as opened:
        tab.frame.locator(".headlines a").click()
    page = opened.value
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.reload()
    page.locator(".plot .main-svg").first.wait_for()
    assert "attention-logit-growth" in page.locator("main").inner_text() and errors == []


def test_the_picture_of_the_readme(browser: Any, address: str) -> None:
    """Two runs that were trained here; ``STABILITYLENS_PICTURE=docs/dashboard.png`` puts it where the README has it."""
    tab = Tab(browser, address, width=1440, height=1460)
    tab.choose("lr 0.1, without QK-norm", "lr 0.1, with QK-norm")
    tab.frame.locator(".finding[data-code=SL201] button").first.click()
    tab.cell("max_attn_logit of layer")
    tab.js("document.activeElement.blur(); window.scrollTo(0, 0);")
    tab.page.mouse.move(5, 5)
    tab.page.wait_for_timeout(1000)
    picture = Path(os.environ.get("STABILITYLENS_PICTURE", SCREENSHOTS / "readme.png"))
    tab.page.screenshot(path=str(picture), clip={"x": 0, "y": 64, "width": 1440, "height": 1396})
    assert picture.stat().st_size > 50_000
    tab.check()
    tab.close()


def test_other_paths_are_refused(address: str) -> None:
    for path in ("static/index.js", "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "plugin.py", "index.js/../../plugin.py"):
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{address}/data/plugin/stabilitylens/{path}", timeout=60)
        assert refused.value.code in (400, 404)
