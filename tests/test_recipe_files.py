"""Recipes from files: each dialect, what is filled in, what is left out, and everything that is no recipe."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitylens.errors import BadInput
from stabilitylens.recipe import Recipe
from stabilitylens.recipe_files import DIALECTS, read_recipe
from stabilitylens.recipe_files._read import translate

HUGGINGFACE = """
output_dir: out
learning_rate: 3e-4
adam_beta2: 0.95
optim: paged_adamw_8bit
warmup_ratio: 0.03
max_steps: 1000
weight_decay: 0.1
bf16: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
report_to: none
"""
TORCHTITAN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "70B"
[optimizer]
name = "AdamW"
lr = 1.5e-4
[lr_scheduler]
warmup_steps = 400
[training]
local_batch_size = 8
global_batch_size = 512
seq_len = 8192
max_norm = 2.0
steps = 1000
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 16
"""
NANOTRON = """
general: {run: x}
model: {dtype: bfloat16, init_method: {std: 0.025}}
optimizer:
  clip_grad: 1.0
  weight_decay: 0.01
  optimizer_factory: {name: adamW, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-08}
  learning_rate_scheduler: {learning_rate: 0.0003, lr_warmup_steps: 2}
parallelism: {dp: 2, tp: 2}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 3, sequence_length: 256, train_steps: 15}
"""
LLAMA_FACTORY = """
model_name_or_path: some/model
stage: sft
finetuning_type: lora
cutoff_len: 2048
learning_rate: 1.0e-4
warmup_steps: 20
fp16: true
"""
AXOLOTL = """
base_model: some/model
datasets: [{path: x}]
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
learning_rate: 0.0002
warmup_steps: 10
bf16: auto
"""
DEEPSPEED = json.dumps({
    "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 6e-4, "betas": [0.8, 0.99], "eps": 1e-8, "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 500}},
    "gradient_clipping": 1.0, "fp16": {"enabled": True, "loss_scale": 1}, "zero_optimization": {"stage": 3},
})
OWN = '{"optimizer": "Muon", "lr": 0.02, "task": "lm", "qk_clip": 100, "multimodal": "yes", "norm_precision": "float32"}'

#: dialect: (file name, text, what it must come out as)
FILES = {
    "huggingface": ("args.yaml", HUGGINGFACE, Recipe(
        "AdamW", 3e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, 30, 1000, "bf16", batch_size=4, grad_accumulation=8,
        embedding_weight_decay=0.1)),
    "torchtitan": ("train.toml", TORCHTITAN, Recipe(
        "AdamW", 1.5e-4, 0.9, 0.95, 1e-8, 0.1, 2.0, 400, 1000, "bf16", batch_size=8, grad_accumulation=2, n_devices=32,
        seq_len=8192, embedding_weight_decay=0.1)),
    "nanotron": ("config.yml", NANOTRON, Recipe(
        "AdamW", 3e-4, 0.9, 0.95, 1e-8, 0.01, 1.0, 2, 15, "bf16", batch_size=2, grad_accumulation=3, n_devices=2,
        seq_len=256)),
    "llama_factory": ("sft.yaml", LLAMA_FACTORY, Recipe(
        "AdamW", 1e-4, 0.9, 0.999, 1e-8, 0.0, 1.0, 20, None, "fp16", True, batch_size=8, grad_accumulation=1, seq_len=2048)),
    "axolotl": ("qlora.yml", AXOLOTL, Recipe(
        "AdamW", 2e-4, 0.9, 0.999, 1e-8, warmup_steps=10, batch_size=2, grad_accumulation=4, seq_len=4096)),
    "deepspeed": ("ds.json", DEEPSPEED, Recipe(
        "AdamW", 6e-4, 0.8, 0.99, 1e-8, None, 1.0, 500, None, "fp16", False, batch_size=4, grad_accumulation=2, n_devices=32)),
    "own": ("recipe.json", OWN, Recipe("Muon", 0.02, task="lm", qk_clip=100.0, multimodal=True, norm_precision="fp32")),
}


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def without_notes(recipe: Recipe) -> dict:
    return {k: v for k, v in recipe.to_dict().items() if k != "notes"}


def test_every_dialect_has_a_file_here() -> None:
    assert set(FILES) == set(DIALECTS.names())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("rename", [False, True], ids=["named", "renamed"])
def test_a_file_is_told_by_its_keys(name: str, rename: bool, tmp_path: Path) -> None:
    file, text, expected = FILES[name]
    recipe = read_recipe(write(tmp_path, "recipe" if rename else file, text))
    assert without_notes(recipe) == without_notes(expected)
    title = DIALECTS[name].title
    assert (recipe.notes[:1] == (f"read as a file of {title}",)) == (name != "own")


@pytest.mark.parametrize("name", FILES)
def test_every_field_of_a_table_is_one_of_a_recipe(name: str) -> None:
    spoken, known = DIALECTS[name], {f.name for f in fields(Recipe)}
    assert {field for field, _ in spoken.table.values()} | set(spoken.defaults) <= known


def test_the_file_s_own_schema_has_every_field() -> None:
    assert set(DIALECTS["own"].table) == {f.name for f in fields(Recipe)} - {"notes"}


def test_what_is_filled_in_and_what_is_not_used_is_said(tmp_path: Path) -> None:
    notes = read_recipe(write(tmp_path, "a.yaml", HUGGINGFACE)).notes
    assert "beta1 0.9" in notes[1] and "beta2" not in notes[1] and "warmup_steps" not in notes[1]
    assert notes[2] == "not used: report_to"
    many = HUGGINGFACE + "".join(f"key_{i}: 1\n" for i in range(9))
    assert read_recipe(write(tmp_path, "b.yaml", many)).notes[2].endswith("key_4 and 4 more")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("warmup_ratio: 0.1", "warmup_steps", None), ("warmup_steps: 0.1", "warmup_steps", None), ("", "warmup_steps", 0),
        ("warmup_ratio: 0.1\nmax_steps: 500", "warmup_steps", 50), ("warmup_steps: 7\nwarmup_ratio: 0.1", "warmup_steps", 7),
        ("warmup_steps: 0\nwarmup_ratio: 0.1\nmax_steps: 50", "warmup_steps", 5), ("max_steps: -1", "total_steps", None),
        ("bf16: false", "precision", "fp32"), ("bf16: auto", "precision", None), ("optim: adafactor", "beta2", None),
        ("optim: lion_32bit", "optimizer", "Lion"), ("adam_beta2: x", "beta2", None), ("learning_rate: .nan", "lr", None),
        ("max_grad_norm: 0", "max_grad_norm", 0.0),
    ],
)
def test_what_a_file_leaves_open_is_not_known(text: str, field: str, value: object, tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, "a.yaml", f"output_dir: out\nper_device_train_batch_size: 2\n{text}\n"))
    assert getattr(recipe, field) == value


def test_auto_of_deepspeed_says_nothing(tmp_path: Path) -> None:
    text = '{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "train_batch_size": "auto"}'
    assert set(without_notes(read_recipe(write(tmp_path, "a.json", text))).values()) == {None}


def test_a_dynamic_scale_is_a_scale(tmp_path: Path) -> None:
    for scale, scaled in ((0, True), (128, True), (1, False)):
        text = json.dumps({"fp16": {"enabled": True, "loss_scale": scale}, "gradient_clipping": 1.0})
        assert read_recipe(write(tmp_path, "a.json", text)).loss_scaling is scaled


BAD = {
    "missing": ("", None, "cannot read"), "empty": ("a.yaml", "", "no table of keys"), "list": ("a.json", "[1]", "no table"),
    "broken json": ("a.json", "{", "not JSON"), "broken toml": ("a.toml", "x = = 1", "not TOML"),
    "broken yaml": ("a.yaml", "a: [1", "not YAML"), "nothing known": ("a.yaml", "rate: 1\nsteps: 2", "no key that is known"),
    "a python object": ("a.yaml", "lr: !!python/object/apply:os.getcwd []", "not YAML"), "text": ("a.txt", "hello", "no table"),
    "a script": ("a.sh", "torchrun --nproc 8 train.py --lr 1", "no table"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_one_sentence(kind: str, tmp_path: Path) -> None:
    name, text, said = BAD[kind]
    path = write(tmp_path, name, text) if text is not None else tmp_path / "nothing.yaml"
    with pytest.raises(BadInput) as raised:
        read_recipe(path)
    assert said in str(raised.value) and str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_pickles_folders_and_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(b"PK\x03\x04\x80\x02\xff\xfe")
    (tmp_path / "large.json").write_text('{"lr": 1}' + " " * 5_000_000)
    for name, said in (("training_args.bin", "pickles are never loaded"), ("large.json", "bytes"), ("", "cannot read")):
        with pytest.raises(BadInput, match=said):
            read_recipe(tmp_path / name)


def test_yaml_that_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}\n" for i in range(1, 9)
    )
    with pytest.raises(BadInput, match="keys"):
        read_recipe(write(tmp_path, "bomb.yaml", bomb))
    recursive = read_recipe(write(tmp_path, "ring.yaml", "lr: 1\nring: &r {again: *r}\n"))
    assert recursive.lr == 1.0


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3))
KEYS = sorted({key for d in DIALECTS for key in (*d.table, *d.uses, *d.marks)})


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(DIALECTS.names()), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=12))
def test_no_value_breaks_a_translation(name: str, flat: dict) -> None:
    recipe = translate(DIALECTS[name], flat)
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        kind = str(field.type).removesuffix(" | None")
        allowed = {"float": float, "int": int, "str": str, "bool": bool}.get(kind, tuple)
        assert value is None or type(value) is allowed, (field.name, value)


@pytest.mark.parametrize(
    ("text", "said", "field"),
    [
        ("learning_rate: banana\nwarmup_steps: 10\n", "learning_rate 'banana'", "lr"),
        ("optimizer: adamw\nlr: 3e-4\nbeta2: many\n", "beta2 'many'", "beta2"),
        ("optimizer: adamw\nlr: 3e-4\nbeta2: 1.7\n", "beta2 1.7", "beta2"),
        ("optimizer: adamw\nlr: 3e-4\nwarmup_steps: -5\n", "warmup_steps -5", "warmup_steps"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_and_not_known(text: str, said: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    recipe = read_recipe(path)
    assert getattr(recipe, field) is None
    assert any("no value that can be used" in note and said in note for note in recipe.notes)


@pytest.mark.parametrize("value", ["auto", "null", "-1", "''", "none"])
def test_a_value_that_leaves_it_to_the_framework_is_no_mistake(value: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"learning_rate: 1e-4\nadam_beta1: 0.9\nmax_steps: {value}\n")
    assert not any("no value that can be used" in note for note in read_recipe(path).notes)
