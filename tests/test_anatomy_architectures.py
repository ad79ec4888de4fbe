"""Anatomy of published architectures, built tiny, against a table of what their code does.

The table and the builder are read from the folder that STABILITYLENS_DATA names.
"""

import importlib.util
import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from stabilitylens.hooks.anatomy import read_anatomy  # noqa: E402

FOLDER = Path(os.environ.get("STABILITYLENS_DATA", "")) / "architectures"
pytestmark = pytest.mark.skipif(not (FOLDER / "truth.jsonl").is_file(), reason="STABILITYLENS_DATA is not set")

CHUNKS = 4
WHERE_TOLD = {
    "qk_norm": "qk_norm",
    "norm_placement": "norm_placement",
    "parallel": "parallel",
    "final_norm": "final_norm",
    "n_softmax_attn": "n_attention",
}


@pytest.fixture(scope="module")
def tiny():
    spec = importlib.util.spec_from_file_location("tiny_architectures", FOLDER / "tiny.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(chunk):
    lines = (FOLDER / "truth.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][chunk::CHUNKS]


def wrong(row, anatomy):
    """Fields that differ from the table; what it leaves open is not compared."""
    told = {key: field for key, field in WHERE_TOLD.items() if row.get(key) is not None}
    if row.get("qk_norm") not in (None, "none"):
        told["qk_norm_pos"] = "qk_norm_position"
    told["softcap"] = "soft_cap"
    return {f: (getattr(anatomy, f), row.get(k)) for k, f in told.items() if getattr(anatomy, f) != row.get(k)}


def build(tiny, name, attention):
    """The model and its inputs, or None where the library has no such attention for it."""
    try:
        return tiny.build(name, attn=attention)[:2]
    except ValueError:
        assert attention != "eager"
        return None


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_architectures(tiny, chunk, attention):
    failures = {}
    for row in rows(chunk):
        built = build(tiny, row["name"], attention)
        if built and (different := wrong(row, read_anatomy(*built))):
            failures[row["name"]] = different
    assert not failures


def on_meta(tiny, name):
    with torch.device("meta"):
        model, inputs, _ = tiny.build(name, attn="eager")
    return model.to(torch.bfloat16), {k: v.to("meta") if hasattr(v, "to") else v for k, v in inputs.items()}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_architectures_without_numbers(tiny, chunk):
    failures = {}
    for row in rows(chunk):
        if different := wrong(row, read_anatomy(*on_meta(tiny, row["name"]))):
            failures[row["name"]] = different
    assert not failures


def test_inputs_are_made_up(tiny):
    families = {"opt": "pre", "bert": "post", "gemma2": "peri", "flex_olmo": "output", "t5": "pre", "vit": "pre"}
    families |= {"clip": "pre", "whisper": "pre", "speech_to_text": "pre", "wav2vec2": "post"}
    for name, placement in families.items():
        model, _ = build(tiny, name, "eager")
        assert read_anatomy(model).norm_placement == placement, name
