"""The picture of a model in text; the one as SVG says the same, and is safe and whole."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from stabilitylens.anatomy import Anatomy, AttentionCall, SubLayer
from stabilitylens.reports.anatomy_svg import draw_svg
from stabilitylens.reports.anatomy_text import draw

NAMESPACE = "{http://www.w3.org/2000/svg}"


def branches(placement, layers=3, norm="rmsnorm"):
    kinds = ("attention", "feed_forward")
    return tuple(SubLayer(i, kind, f"b.{i}", placement, norm) for i in range(layers) for kind in kinds)


def anatomy(placement, **fields):
    call = AttentionCall(0, "b.0", 2, 8, "head", "pre_rope", 50.0, 0.25)
    whole = Anatomy(placement, "rmsnorm", n_layers=3, sub_layers=branches(placement), attention_calls=(call,) * 3)
    return replace(whole, **fields)


def drawn(what):
    return ElementTree.fromstring(str(draw_svg(what)).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def labels(what):
    return [text.text for text in drawn(what).iter(f"{NAMESPACE}text")]


@pytest.mark.parametrize(
    "placement, norms", [("pre", 2), ("post", 2), ("peri", 4), ("output", 2), ("none", 0), ("mixed", 4)]
)
def test_one_block_is_drawn_with_all_its_norms(placement, norms):
    shown = labels(anatomy(placement))
    assert shown.count("rmsnorm") == norms
    assert (shown.count("attention"), shown.count("feed-forward")) == (1, 1)
    assert "blocks 0–2  ×3" in shown
    assert len(list(drawn(anatomy(placement)).iter(f"{NAMESPACE}circle"))) == 2


def test_the_way_of_queries_and_keys():
    shown = labels(anatomy("pre", final_norm=True))
    way = ["project", "QK-Norm (head, before rotation)", "q·kᵀ × 0.25", "soft-cap 50", "softmax"]
    assert shown[-len(way) :] == way
    assert "rmsnorm (final)" in shown


@pytest.mark.parametrize("placement", ["pre", "post", "peri", "mixed"])
def test_everything_is_inside_the_picture(placement):
    picture = drawn(anatomy(placement, latent_norm=True, final_norm=True))
    width, height = float(picture.get("width")), float(picture.get("height"))
    for box in picture.iter(f"{NAMESPACE}rect"):
        x, y, w, h = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= x and x + w <= width and 0 <= y and y + h <= height


def test_the_text_picture_is_its_description():
    what = anatomy("peri", uncertain=("qk_norm",))
    assert drawn(what).find(f"{NAMESPACE}desc").text == draw(what)


def test_names_cannot_be_markup():
    what = anatomy("pre", sub_layers=branches("pre", norm="<script>alert(1)</script>"), notes=("<b>&",))
    assert "<script" not in draw_svg(what) and "<b>" not in draw_svg(what)
    assert "<script>alert(1)</script>" in labels(what)


def test_nothing_known_draws_nothing():
    assert draw_svg(Anatomy()) == ""


def test_drawing():
    calls = [AttentionCall(0, "b.0", 2, 8, "head", "pre_rope", 50.0, 0.25)] * 2
    branches = [SubLayer(i, "attention", "a", "peri", "rmsnorm") for i in range(2)]
    branches += [SubLayer(2, "feed_forward", "m", "post", "layernorm")]
    anatomy = Anatomy("peri", "rmsnorm", final_norm=True, n_layers=3, sub_layers=tuple(branches))
    anatomy = replace(anatomy, attention_calls=tuple(calls))
    assert draw(anatomy).splitlines() == [
        "peri: x + N(F(N(x)))   (blocks 3)",
        "",
        "  x",
        "  │",
        "  │  ┌─ blocks 0–1  ×2",
        "  ├──▶ rmsnorm ─▶ attention ─▶ rmsnorm ─┐",
        "  ⊕◀────────────────────────────────────┘",
        "  │  └─",
        "  │",
        "  │  ┌─ block 2",
        "  ├──▶ feed-forward ─┐",
        "  ⊕◀─────────────────┘",
        "  ● layernorm",
        "  │  └─",
        "  ● rmsnorm (final)",
        "  ▼",
        "",
        "q·k: project ─▶ QK-Norm (head, before rotation) ─▶ q·kᵀ × 0.25 ─▶ soft-cap 50 ─▶ softmax",
    ]


def test_drawing_folds_what_repeats_without_blocks():
    pair = (SubLayer(None, "attention", "a", "pre", "rmsnorm"), SubLayer(None, "feed_forward", "m", "pre", "rmsnorm"))
    lines = draw(Anatomy("pre", "rmsnorm", sub_layers=pair * 3)).splitlines()
    assert "  │  ┌─ outside the blocks  ×3" in lines
    assert sum("⊕" in line for line in lines) == 2


def test_drawing_nothing():
    assert draw(Anatomy(notes=("not read: why",))) == "No residual branch was observed.\nnot read: why"
