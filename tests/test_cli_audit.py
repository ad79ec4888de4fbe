"""``stabilitylens audit``: published configs, what it writes, and everything that is no model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stabilitylens.rules import RULES
from tests.test_cli import call, one_sentence

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

QWEN3 = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}
OLMO2 = {
    "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352,
}
GPT1 = {"model_type": "openai-gpt", "architectures": ["OpenAIGPTLMHeadModel"], "n_layer": 24}
TINY = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": 64,
}
FACTORIES = """
import torch
from torch import nn

def post_ln():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 14, enable_nested_tensor=False), torch.zeros(1, 3, 16)

def wrong_shape():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.zeros(1, 3)

def raises():
    raise ValueError("no\\nluck")

FACTORY = "post_ln"

def number():
    return 3

def on_meta():
    with torch.device("meta"):
        return post_ln()[0]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a module of factories."""
    (tmp_path / "factories_of_audits.py").write_text(FACTORIES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    sys.modules.pop("factories_of_audits", None)
    return tmp_path


def config(folder: Path, **fields: Any) -> str:
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return "config.json"


def findings(capsys: pytest.CaptureFixture[str], verdict: str = "fired") -> dict[str, str | None]:
    data = json.loads(capsys.readouterr().out)
    return {f["name"]: f["severity"] for f in data["findings"] if f["verdict"] == verdict}


@pytest.mark.parametrize("known", [QWEN3, OLMO2], ids=["Qwen3-8B", "OLMo-2-7B"])
def test_models_with_nothing_wrong_have_no_warning(here: Path, known: dict, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", config(here, **known), "--fail-on", "warning", "--format", "json") == 0
    assert set(findings(capsys).values()) <= {"info"}


def test_a_deep_post_ln_model_without_warm_up_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("args.yaml").write_text("output_dir: out\nlearning_rate: 2.5e-4\nper_device_train_batch_size: 64\n")
    argv = ("audit", config(here, **GPT1), "--format", "json", "--fail-on", "error", "--recipe")
    assert call(*argv, "args.yaml") == 1
    assert findings(capsys)["post-ln-warm-up"] == "error"
    Path("args.yaml").write_text("output_dir: out\nwarmup_steps: 2000\nper_device_train_batch_size: 64\n")
    assert call(*argv, "args.yaml") == 0
    assert findings(capsys)["post-ln-depth"] == "info"


def test_every_static_rule_has_one_of_three_verdicts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", config(here, **TINY), "--format", "json") == 0
    listed = {f["code"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert listed == {rule.code for rule in RULES if rule.static}


SCALED = """
import torch
from torch import nn

class Scaled(nn.RMSNorm):
    def __init__(self, width, depth):
        super().__init__(width)
        self.factor = depth**-0.5

    def forward(self, x):
        return super().forward(x) * self.factor

class Block(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.norm, self.up, self.down = Scaled(16, depth), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())

def make():
    return nn.Sequential(nn.Embedding(8, 16), *[Block(depth) for depth in range(1, 7)])
"""


def test_rules_that_need_what_only_a_recipe_or_a_measurement_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("scaled_norms_of_audits.py").write_text(SCALED, encoding="utf-8")
    Path("own.yaml").write_text("scaled_init: true\nembedding_weight_decay: 0.1\n")
    assert call("audit", "scaled_norms_of_audits:make", "--recipe", "own.yaml", "--format", "json") == 0
    fired = findings(capsys)
    assert (fired["scaling-twice"], fired["embedding-weight-decay"]) == ("warning", "info")
    Path("args.json").write_text(json.dumps({"output_dir": "o", "weight_decay": 0.1, "num_train_epochs": 1}))
    assert call("audit", config(here, **TINY), "--init", "--recipe", "args.json", "--format", "json") == 0
    fired = findings(capsys)
    assert (fired["embedding-weight-decay"], fired["embedding-scale"]) == ("info", "info")


@pytest.mark.parametrize(("level", "code"), [("info", 1), ("warning", 1), ("error", 0)])
def test_fail_on_decides_the_exit_code(here: Path, level: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", "factories_of_audits:post_ln", "--format", "line", "--fail-on", level) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("factories_of_audits:post_ln: warning SL102 post-ln-depth: 14 blocks are Post-LN")
    assert lines[-1].startswith("factories_of_audits:post_ln: 1 warning, ") and "not evaluated" in lines[-1]


#: what a SARIF log, run, rule and result must have (2.1.0)
REQUIRED = {
    "log": {"version", "runs"}, "driver": {"name", "rules"}, "rule": {"id", "shortDescription", "help"},
    "result": {"ruleId", "ruleIndex", "level", "message", "locations"},
}


def sarif(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    log = json.loads(capsys.readouterr().out)
    assert REQUIRED["log"] <= set(log) and log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    assert REQUIRED["driver"] <= set(run["tool"]["driver"])
    return run


def test_sarif_has_what_code_scanning_needs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", "factories_of_audits:post_ln", "--format", "sarif") == 0
    run = sarif(capsys)
    rules = run["tool"]["driver"]["rules"]
    assert all(REQUIRED["rule"] <= set(rule) for rule in rules) and len({r["id"] for r in rules}) == len(rules)
    assert run["results"]
    for result in run["results"]:
        assert REQUIRED["result"] <= set(result) and result["message"]["text"]
        assert result["level"] in {"error", "warning", "note"} and rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "factories_of_audits.py" and place["region"]["startLine"] == 1
    (subject,) = run["properties"]["subjects"]
    judged = [*subject["fired"], *subject["clear"], *(f["code"] for f in subject["not_evaluated"])]
    assert sorted(judged) == sorted(r["id"] for r in rules) and all(f["lacks"] for f in subject["not_evaluated"])


def test_sarif_points_at_the_config_of_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "a model").mkdir()
    config(here / "a model", **TINY)
    assert call("audit", "a model", "--format", "sarif") == 0
    uris = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in sarif(capsys)["results"]}
    assert uris == {"a%20model/config.json"}


def test_init_measures_a_config_with_weights_at_random(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", config(here, **TINY), "--init", "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["initial"]["resid_rms/layer"]) == 2 and data["initial"]["embedding_rms"] == pytest.approx(0.02, rel=0.2)
    assert {"SL301", "SL304", "SL501", "SL609"} <= {f["code"] for f in data["findings"] if f["verdict"] != "not_evaluated"}


def test_the_class_that_a_config_names_is_built(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for named in ({}, {"architectures": ["LlamaForCausalLM"]}, {"architectures": ["pipeline"]}, {"architectures": ["os.system"]}):
        assert call("audit", config(here, **TINY, **named), "--format", "json") == 0
        sizes.append(json.loads(capsys.readouterr().out)["anatomy"]["n_parameters"])
    assert sizes[1] == sizes[0] + 64 * 32 and sizes[2] == sizes[3] == sizes[0]


CODE = "from pathlib import Path; Path('ran').touch()\nclass C: pass\nclass M: pass\n"


def test_code_of_a_model_s_own_is_never_run_and_that_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "their.py").write_text(CODE, encoding="utf-8")
    own = {"auto_map": {"AutoConfig": "their.C", "AutoModel": "their.M"}}
    assert call("audit", config(here, **TINY | own), "--format", "json") == 0
    assert "their.py), which is never run" in capsys.readouterr().err
    assert call("audit", config(here, **own, model_type="theirs")) == 2
    said = one_sentence(capsys.readouterr())
    assert "only code of its own describes (their.py)" in said and "never run" in said
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "names no architecture"), ('{"architectures": ["LlamaForCausalLM"]}', "give it a model_type"),
        ('{"model_type": "lama"}', "did you mean"), ('{"model_type": "nothing-like-it"}', "does not know"),
        ('{"model_type": 3}', "names no architecture"), ("[]", "no table of keys"), ("{", "no JSON"), ("\x00", "no JSON"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "cannot build a model"),
        ('{"model_type": "llama", "hidden_size": 30, "num_attention_heads": 0}', "cannot build a model"),
    ],
)
def test_a_config_that_gives_no_model_is_one_sentence(
    here: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "config.json").write_text(text, encoding="utf-8")
    assert call("audit", "config.json") == 2
    assert said in one_sentence(capsys.readouterr())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("factories_of_audits:raises",), "ValueError: no luck"),
        (("factories_of_audits.py:raises",), "name its module instead: factories_of_audits:raises"),
        (("factories_of_audits.py",), "name a factory in it, as factories_of_audits:factory"),
        (("factories_of_audits:",), "names no factory"), ((":raises",), "names no module"),
        (("factories_of_audits:nothing",), "no attribute 'nothing'"), (("no_such_module:make",), "No module named"),
        (("missing.json",), "missing.json does not exist"), (("org/model",), "none is downloaded"), (("",), "no config.json"),
        (("factories_of_audits:FACTORY",), "is of type str"), (("factories_of_audits:number",), "given int"),
        (("factories_of_audits:wrong_shape",), "does not run on the example inputs"),
        (("factories_of_audits:wrong_shape", "--init"), "does not run on the example inputs"),
        (("factories_of_audits:on_meta", "--init"), "meta device"),
        (("factories_of_audits:post_ln", "--recipe", "nothing.yaml"), "cannot read the recipe"),
        (("factories_of_audits:post_ln", "--recipe", "."), "without a recording"),
        (("factories_of_audits:post_ln", "--format", "xml"), "--help"),
    ],
)
def test_what_cannot_be_audited_is_one_sentence(
    here: Path, argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("audit", *argv) == 2
    assert said in one_sentence(capsys.readouterr())


def test_a_model_too_large_to_measure_is_refused_before_it_is_built(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", config(here, **QWEN3 | {"hidden_size": 1 << 20, "num_hidden_layers": 1}), "--init") == 2
    assert "--init needs some" in one_sentence(capsys.readouterr())


def test_the_recipe_of_a_recorded_run_counts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stabilitylens.hooks import attach

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with attach(model, torch.optim.AdamW(model.parameters(), lr=0.3), here / "run") as lens:
        model(torch.zeros(1, 4)).sum().backward()
        lens.step(1.0)
    assert call("audit", "factories_of_audits:post_ln", "--recipe", "run", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["lr"] == 0.3
