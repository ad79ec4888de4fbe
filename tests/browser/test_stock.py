"""TensorBoard's own tabs on a run of 20,000 samples: what it gives to them, and what they draw, with the Rust data server and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.browser import recordings
from tests.browser.driving import SCREENSHOTS, Tab, chromium, tensorboard

SPIKE = 12_345


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stock") / "logs"
    recordings.long(folder / "long", at=SPIKE)
    recordings.train(folder / "short", spike=True)
    return folder


@pytest.fixture(scope="module", params=["true", "false"], ids=["rust", "python"])
def address(request: pytest.FixtureRequest, logs: Path) -> Iterator[str]:
    with tensorboard(logs, "--load_fast", request.param) as found:
        yield found


def asked(address: str, path: str, **parameters: str) -> Any:
    with urlopen(f"{address}/data/plugin/{path}?{urlencode(parameters)}", timeout=60) as answer:
        return json.loads(answer.read())


def until_loaded(address: str) -> list[list[float]]:
    """The scalar of window maxima, once TensorBoard has read the whole run."""
    import time

    for _ in range(240):
        tags = asked(address, "scalars/tags")
        if "loss/train_max" in tags.get("long/stabilitylens", {}):
            points = asked(address, "scalars/scalars", run="long/stabilitylens", tag="loss/train_max")
            if points[-1][1] > 19_000 and "short/stabilitylens" in tags:
                return points  # type: ignore[no-any-return]
        time.sleep(0.5)
    raise AssertionError("TensorBoard has not read the run")


def test_the_spike_is_among_the_points_that_tensorboard_draws(address: str) -> None:
    points = until_loaded(address)
    assert [step for _, step, value in points if value > 8] == [SPIKE]
    logits = asked(address, "scalars/scalars", run="long/stabilitylens", tag="max_attn_logit/max_max")
    assert [step for _, step, value in logits if value > 50] == [SPIKE]
    markers = asked(address, "scalars/scalars", run="long/stabilitylens", tag="incidents/spike")
    assert SPIKE in [step for _, step, _ in markers]


def test_layout_text_and_histograms(address: str) -> None:
    until_loaded(address)
    layout = asked(address, "custom_scalars/layout")
    titles = [category["title"] for category in layout["category"]]
    assert {"Loss", "Gradients", "Attention", "Residual stream", "Optimizer"} <= set(titles)
    attention = next(category for category in layout["category"] if category["title"] == "Attention")
    lines = [tag for chart in attention["chart"] for tag in chart.get("multiline", {}).get("tag", [])]
    assert "^max_attn_logit/max_max$" in lines  # the tag in which the spike survives sampling is drawn
    text = asked(address, "text/text", run="short/stabilitylens", tag="stabilitylens/about")[-1]["text"]
    assert "Anatomy" in text and "layernorm ─▶ attention" in text and "missing-qk-norm" in text and 'href="#stabilitylens"' in text
    assert asked(address, "histograms/histograms", run="long/stabilitylens", tag="max_attn_logit/histogram")
    tags = [tag for plugin in ("scalars", "histograms", "text") for tag in asked(address, f"{plugin}/tags").get("short/stabilitylens", [])]
    assert len(tags) < 200 and {"max_attn_logit/max_max", "max_attn_logit/layer_0", f"max_attn_logit/layer_{recordings.LAYERS - 1}"} <= set(tags)


def test_beside_them_the_stability_tab_shows_the_spike_at_full_zoom_out(address: str) -> None:
    with chromium() as browser:
        tab = Tab(browser, address)
        tab.choose("long")
        red, green, blue = tab.colour(recordings.SPIKE_LAYER, SPIKE)
        assert red > 200 and green > 200 and blue < 90
        tab.click(recordings.SPIKE_LAYER, SPIKE)
        assert f"layer {recordings.SPIKE_LAYER}, head {recordings.SPIKE_HEAD}" in tab.cell(f": 60 at step {SPIKE}")
        tab.shoot("long")
        tab.check()
        tab.close()


@pytest.mark.parametrize("tab", ["scalars", "custom_scalars", "text"])
def test_the_tabs_draw_it(address: str, tab: str) -> None:
    until_loaded(address)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/#{tab}")
        shown = {"scalars": "tf-scalar-card", "custom_scalars": "tf-custom-scalar-multi-line-chart-card", "text": "tf-text-loader"}[tab]
        page.locator(shown).first.wait_for(timeout=60_000)
        page.wait_for_timeout(2000)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(SCREENSHOTS / f"stock-{tab}.png"))
        assert errors == []
