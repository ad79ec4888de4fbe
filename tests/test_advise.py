"""Advice: every plan of a grid is judged by our own rules, and no wrong statement is repeated."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import cycle, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stabilitylens as sl
from stabilitylens.advice import Advice, Situation
from stabilitylens.advice._condition import OPERATORS, facts_of, holds
from stabilitylens.advice._data import scenarios, sources, thresholds, topics
from stabilitylens.advice._situation import OPTIMIZERS, PRECISIONS, TASKS
from stabilitylens.anatomy import Anatomy
from stabilitylens.errors import BadInput
from stabilitylens.recipe import Recipe

PARAMS, LAYERS = (1e7, 5e8, 1e9, 7e9, 4e11), (2, 12, 31, 61, 126)
#: plans over all that the tree asks for; sequence, batch and the like go round
REST = cycle(
    dict(zip(("seq_len", "batch_size", "n_devices", "precision", "optimizer", "lr", "multimodal"), row, strict=True))
    for row in (
        (None, None, 1, None, "adamw", None, False), (512, 2, 1, "bf16", "adamw", 3e-4, False),
        (8192, 8, 128, "bf16", "muon", 2e-2, False), (8193, 1, 4096, "fp8", "adamw", 1e-2, True),
        (196, 4096, 1, "fp16", "adamw", 1e-3, False), (None, 15, 4, "fp32", "muon", None, False),
        (197, 64, 64, None, "adamw", 5e-4, True),
    )
)
GRID = [
    {"params": params, "layers": layers, "task": task, "variable_length": length} | next(REST)
    for params, layers, task, length in product(PARAMS, LAYERS, TASKS, (None, True))
]
#: what evidence says of each, and what documentation and messages therefore must not say
WRONG = {
    "Peri-LN is no norm every few layers": r"Peri-LN[^.]{0,80}every (\d|six|eight|few)",
    "GPT-2 is Pre-LN": r"GPT-2[^.]{0,60}Post-LN|Post-LN[^.]{0,60}GPT-2",
    "Post-LN is N(x + F(x)), compute-norm-add is the output norm": r"Post-LN, x \+ N\(F",
    "early vanishing is not Xiong's": r"Xiong( et al\.)?[^.]{0,90}vanish",
    "Gemma 2 is Peri-LN with caps of 50 and 30": r"Gemma 2[^.]{0,60}(Pre-LN|Post-LN)",
    "Llama 3, Mistral and Qwen2 have no QK-Norm": r"(Llama 3|Mistral|Qwen2)\b[^.]{0,40}(has|have|with) (QK-Norm|a norm on queries)",
    "BatchNorm's 14 times is no depth and no wall time": r"14\s?(×|x|times)",
    "deep networks can train without normalisation": r"without normali[sz]ation[^.]{0,40}(cannot|never|fail to) train",
    "queries and keys do not grow with depth": r"([Qq]uer|[Ll]ogit)[^.]{0,60}grow[^.]{0,20}(with|in) depth",
    "GPT is not the only LayerNorm family": r"only GPT",
    "gpt-oss uses RMSNorm": r"gpt-oss[^.]{0,40}LayerNorm",
    "DyT was trained to 70B": r"DyT[^.]{0,60}(never|not)[^.]{0,20}(trained|tried)[^.]{0,30}B\b",
    "Derf ties with LayerNorm on GPT-2": r"Derf[^.]{0,60}(beats|better than|outperforms|surpasses)[^.]{0,40}(LayerNorm|GPT-2)",
    "clipping is no safety net": r"(is|as) a safety net",
    "no source for 30, 60 and 8K": r"\b(proven|established|shown) (threshold|limit)",
}


@cache
def advice(index: int) -> Advice:
    return sl.advise(**GRID[index])


@cache
def texts() -> list[str]:
    """Each different thing that is said on the grid, and some of it as a person sees it."""
    said = {text for i in range(len(GRID)) for choice in advice(i).choices for text in strings(choice.to_dict())}
    return sorted(" ".join(text.split()) for text in said | {str(advice(i)) for i in range(0, len(GRID), 25)})


def strings(value: Any) -> set[str]:
    """Every string in plain data."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return {value} if isinstance(value, str) else set().union(*map(strings, parts))


def test_the_grid_is_large_enough() -> None:
    assert len(GRID) >= 200 and len({json.dumps(plan) for plan in GRID}) == len(GRID)


@pytest.mark.parametrize("task", TASKS)
def test_nothing_that_is_advised_would_be_flagged(task: str) -> None:
    for index, plan in enumerate(GRID):
        if plan["task"] == task:
            bad = [f for f in advice(index).fired if f.severity != "info"]
            assert not bad, (plan, bad)


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        Situation, params=st.floats(1e5, 2e12), layers=st.integers(1, 200), seq_len=st.none() | st.integers(1, 10**6),
        batch_size=st.none() | st.integers(1, 10**5), task=st.sampled_from(TASKS), precision=st.none() | st.sampled_from(PRECISIONS),
        width=st.none() | st.integers(1, 32768), head_width=st.none() | st.integers(2, 512), n_devices=st.integers(1, 10**4),
        grad_accumulation=st.integers(1, 64), optimizer=st.sampled_from(OPTIMIZERS), lr=st.none() | st.floats(1e-6, 1.0),
        multimodal=st.booleans(), variable_length=st.none() | st.booleans(),
    )
)
def test_whatever_the_plan(situation: Situation) -> None:
    found = sl.advise(**{name: getattr(situation, name) for name in Situation.__dataclass_fields__})
    assert not [f for f in found.fired if f.severity != "info"]
    assert found["norm"].value != "batchnorm" and found.recipe.warmup_steps == round(2 / (1 - found["beta2"].value))
    assert not (found["norm"].value in ("dyt", "derf") and (situation.task != "research" or situation.params >= 1e9))


def has_qk_norm(**plan: Any) -> bool:
    return sl.advise(**plan)["qk_norm"].value == "head"


@pytest.mark.parametrize("task", TASKS)
def test_more_parameters_or_layers_never_take_qk_norm_away(task: str) -> None:
    for layers in LAYERS:
        assert sorted(grown := [has_qk_norm(params=p, layers=layers, task=task) for p in PARAMS]) == grown
    for params in PARAMS:
        assert sorted(grown := [has_qk_norm(params=params, layers=n, task=task) for n in LAYERS]) == grown
    assert sorted(grown := [has_qk_norm(params=1e8, layers=6, seq_len=n, task=task) for n in (512, 8192, 8193)]) == grown
    assert has_qk_norm(params=4e11, layers=2, task=task) and not has_qk_norm(params=1e7, layers=2, task=task)


def test_more_layers_never_take_peri_ln_away() -> None:
    for task in TASKS:
        found = [sl.advise(params=1e9, layers=n, task=task)["placement"].value for n in (1, 12, 60, 61, 200)]
        assert found == ["pre", "pre", "pre", "peri", "peri"]


SCENARIOS = {
    "small": (dict(params=1e8, layers=6), {"norm": "layernorm", "placement": "pre", "qk_norm": "none"}),
    "large": (dict(params=8e9, layers=32), {"norm": "rmsnorm", "placement": "pre", "qk_norm": "head", "z_loss": 1e-4}),
    "very_deep": (dict(params=7e10, layers=80), {"norm": "rmsnorm", "placement": "peri", "qk_norm": "head", "init": "plain"}),
    "small_batch_vision": (dict(params=1e8, layers=6, task="detection", batch_size=2), {"norm": "groupnorm"}),
    "variable_length": (dict(params=1e8, layers=6, task="speech"), {"norm": "layernorm"}),
    "research": (dict(params=1e8, layers=6, task="research"), {"norm": "derf", "placement": "pre"}),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_six_scenarios(name: str) -> None:
    plan, wanted = SCENARIOS[name]
    found = sl.advise(**plan)
    assert name in [scenario.name for scenario in found.scenarios]
    assert {topic: found[topic].value for topic in wanted} == wanted
    assert (found["precision"].value, found["clipping"].value) == ("bf16", 1.0)


def test_the_anatomy_and_the_recipe_are_what_is_advised() -> None:
    found = sl.advise(params=7e10, layers=80, seq_len=8192, batch_size=8, n_devices=128, precision="fp16")
    assert found.anatomy.norm_placement == "peri" and {s.placement for s in found.anatomy.sub_layers} == {"peri"}
    assert len(found.anatomy.sub_layers) == 160 and len(found.anatomy.attention_calls) == 80
    assert (found.recipe.precision, found.recipe.norm_precision, found.recipe.max_grad_norm) == ("bf16", "fp32", 1.0)
    assert found.recipe.samples_per_step == 1024 and found["init"].value == "plain" and found.recipe.scaled_init is False


@pytest.mark.parametrize(
    ("plan", "beta2", "warm_up"),
    [
        (dict(task="lm"), 0.95, 40), (dict(task="lm", seq_len=256, batch_size=64), 0.99, 200),
        (dict(task="vision", seq_len=196, batch_size=64), 0.999, 2000), (dict(task="vision", batch_size=4096), 0.95, 40),
        (dict(task="vision", seq_len=196, batch_size=4000), 0.95, 40), (dict(task="speech"), 0.95, 40),
    ],
)
def test_beta2_and_the_warm_up_that_follows(plan: dict[str, Any], beta2: float, warm_up: int) -> None:
    found = sl.advise(params=1e8, layers=6, **plan)
    assert (found["beta2"].value, found["warm_up"].value, found.recipe.warmup_steps) == (beta2, warm_up, warm_up)


@pytest.mark.parametrize("what", WRONG)
def test_no_wrong_statement_is_repeated(what: str) -> None:
    for text in texts():
        assert not (found := re.search(WRONG[what], text)), text[max(0, found.start() - 80) : found.end() + 80]


def test_the_search_for_wrong_statements_finds_them() -> None:
    said = (
        "Peri-LN puts a norm every 6 to 8 layers", "GPT-2 is a Post-LN model", "Post-LN, x + N(F(x))", "Xiong et al. find vanishing",
        "Gemma 2 is Pre-LN", "Llama 3 has QK-Norm", "14× faster", "without normalisation deep nets cannot train",
        "logits grow with depth", "only GPT", "gpt-oss uses LayerNorm", "DyT was never trained at 70B", "Derf outperforms LayerNorm",
        "clipping is a safety net", "a proven threshold",
    )
    for pattern, sentence in zip(WRONG.values(), said, strict=True):
        assert re.search(pattern, sentence), (pattern, sentence)


def test_a_threshold_without_a_source_says_that_it_is_heuristic() -> None:
    found = sl.advise(params=7e10, layers=80, seq_len=16384)
    (decision,) = found["placement"].decided_by
    assert decision.heuristic and "heuristic" in str(decision) and "60" in str(decision)
    text = " ".join(str(found).split())
    for number in ("layers 80 > 60 (heuristic", "layers 80 > 30 (heuristic", "seq len 16,384 > 8,192 (heuristic"):
        assert number in text
    assert all(line["heuristic"] for name, line in thresholds().items() if name in ("very_deep", "large_layers", "long_sequence"))


def test_far_beyond_the_evidence_says_so() -> None:
    assert "22 billion parameters, this plan has 400 billion" in sl.advise(params=4e11, layers=10, task="vision")["norm"].scale_note
    assert sl.advise(params=1e8, layers=6)["norm"].scale_note == ""


def test_what_was_not_given_and_mattered_is_said() -> None:
    said = " ".join(sl.advise(params=1e8, layers=6).assumptions)
    assert all(f"{fact} was not given" in said for fact in ("batch_size", "seq_len", "lr", "precision", "variable_length"))
    given = sl.advise(params=1e8, layers=6, batch_size=8, seq_len=512, lr=1e-3, precision="bf16", variable_length=False, head_width=64)
    assert given.assumptions == ()


def test_a_topic_that_does_not_exist() -> None:
    with pytest.raises(KeyError, match="there is on norm, placement"):
        sl.advise(params=1e8, layers=6)["activation"]


BAD = [
    (dict(params=-1, layers=6), "params is -1; it must be a number above 0"),
    (dict(params=1e9, layers=0), "layers is 0; it must be a whole number of 1 or more"),
    (dict(params=1e9, layers=True), "layers is True"), (dict(params=1e9, layers=1.5), "layers is 1.5"),
    (dict(params=float("nan"), layers=6), "params is nan"), (dict(params=0.5, layers=6), "params is 0.5"),
    (dict(params=1e9, layers=10**6), "at most 10,000"),
    (dict(params=1e9, layers=6, task="chess"), "task is 'chess'; it may be lm, vision, detection, speech or research"),
    (dict(params=1e9, layers=6, precision="int8"), "precision is 'int8'"),
    (dict(params=1e9, layers=6, optimizer="sgd"), "optimizer is 'sgd'"), (dict(params=1e9, layers=6, lr=-1.0), "lr is -1.0"),
    (dict(params=1e9), "needs layers"), (dict(layers=6), "needs params"), (dict(), "needs params and layers"),
    (dict(params=1e9, layers=6, colour="red"), "does not know colour"), (dict(params=1e9, layers=6, recipe={}), "without a model"),
    (dict(model=Anatomy(), params=1e9), "which a model says itself"), (dict(model=3), "torch.nn.Module"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_bad_input_is_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)) as raised:
        sl.advise(**arguments)
    assert "\n" not in str(raised.value)


def test_the_data_is_whole() -> None:
    """Every key that is referred to exists, and every key that exists is referred to."""
    facts = set(Situation(1e9, 6).facts()) | {"scenarios"}
    cited, tested = set(), set()
    for topic in topics():
        assert set(topic) == {"topic", "title", "alternatives", "branches"}
        used = set()
        for branch in topic["branches"]:
            known = {"when", "value", "title", "why", "strength", "sources", "contradicts", "costs", "sets", "rejected"}
            assert set(branch) <= known and known - {"when", "sets"} <= set(branch), topic["topic"]
            assert branch["strength"] in ("strong", "moderate", "weak", "heuristic") and branch["sources"] and branch["rejected"]
            assert set(branch.get("sets", {}).get("anatomy", {})) <= set(Anatomy.__dataclass_fields__)
            assert set(branch.get("sets", {}).get("recipe", {})) <= set(Recipe.__dataclass_fields__)
            assert facts_of(branch.get("when", {})) <= facts
            used |= set(branch["rejected"])
            cited |= set(branch["sources"])
            tested |= compared(branch.get("when", {}))
        assert used == set(topic["alternatives"]), topic["topic"]
        cited |= {key for fields in topic["alternatives"].values() for key in fields["sources"]}
        facts.add(topic["topic"])
    tested |= {name for scenario in scenarios() for name in compared(scenario["when"])}
    assert cited == set(sources()) and tested == set(thresholds())


def compared(when: dict[str, Any]) -> set[str]:
    """The thresholds that a condition names."""
    found = {str(v).partition(" ")[2] for k, v in when.items() if k != "any" and str(v).partition(" ")[0] in OPERATORS}
    return found.union(*(compared(part) for part in when.get("any", ())))


def test_every_branch_is_reached() -> None:
    plans = [*GRID, *(plan for plan, _ in SCENARIOS.values()), dict(params=1e8, layers=6, seq_len=256, batch_size=4), dict(params=1e9, layers=6),
             dict(params=1e8, layers=6, task="speech", seq_len=100, batch_size=64), dict(params=1e8, layers=6, task="vision", batch_size=64)]
    reached = {(c.topic, c.title, c.contradicts) for plan in plans for c in sl.advise(**plan).choices}
    for topic in topics():
        for branch in topic["branches"]:
            assert (topic["topic"], branch["title"], branch["contradicts"]) in reached, branch


def test_a_condition_on_what_is_not_known_does_not_hold() -> None:
    assert holds({"seq_len": "> long_sequence"}, {"seq_len": None}) is None
    assert holds({"any": [{"seq_len": "> long_sequence"}, {"layers": "> very_deep"}]}, {"seq_len": None, "layers": 61})
    assert holds({}, {}) == []


def test_it_is_written_in_three_forms() -> None:
    found = sl.advise(params=7e10, layers=80, task="lm")
    data = json.loads(found.to_json())
    assert data["schema"] == 1 and data["headline"] == found.headline
    assert [choice["topic"] for choice in data["choices"]] == [choice.topic for choice in found.choices]
    assert {"why", "strength", "contradicts", "costs", "decided_by", "rejected", "sources"} <= set(data["choices"][0])
    text, page = " ".join(str(found).split()), found.to_html()
    assert page.startswith("<!doctype html>") and "<script" not in page and "Peri-LN" in page
    for choice in found.choices:
        assert choice.contradicts.rstrip() in text and choice.title in text
    assert all(link in page for choice in found.choices for link in (s.url for s in choice.sources) if link)
