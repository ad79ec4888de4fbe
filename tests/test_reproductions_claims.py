"""Claims: what they conclude, which rules fire on them, and that a flipped mechanism is not reproduced."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import stabilitylens as sl
from stabilitylens.reproductions import CLAIMS, Claim, Entry, Trial, reproduce, train, verdict
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Numbers
from stabilitylens.reproductions._training import fires
from stabilitylens.reproductions._verdict import outcomes


def ran(claim: Claim, change: Callable[[str, Any], Any], cells: tuple[str, ...], out: Path) -> tuple[Entry, Numbers]:
    """The quick plan's entry with one seed, some of its cells and another set-up, and the quantities; what lies in ``out`` is not run again."""
    other = claim.with_cells(change)
    kept = {name: cell for name, cell in other.quick.cells.items() if name.endswith(cells)}
    (entry,) = reproduce([replace(other, quick=replace(other.quick, cells=kept, seeds=1))], "quick", out, workers=1).entries
    return entry, {o.expect.quantity: o.values[0] for o in entry.outcomes}


def test_pre_ln_swapped_for_post_ln_is_not_reproduced_and_is_without_the_swap(tmp_path: Path):
    def kept(name: str, cell: Choices) -> Choices:
        return cell

    def swapped(name: str, cell: Choices) -> Choices:
        return replace(cell, placement="post" if cell.placement == "pre" else cell.placement)

    claim = CLAIMS["gradients-at-init"]
    control, _ = ran(claim, kept, ("",), tmp_path)
    assert control.verdict == "reproduced"
    flipped, found = ran(claim, swapped, ("",), tmp_path)
    assert flipped.verdict == "not reproduced"
    assert -0.05 <= found["post_slope"] <= 0.05 and found["pre_slope"] == found["post_slope"]


def short(name: str, trial: Trial) -> Trial:
    """A small set-up in which what is expected of attention logits holds, by a factor of three."""
    return replace(trial, steps=300, warmup=30, every=20, choices=replace(trial.choices, depth=2, context=32))


def removed(name: str, trial: Trial) -> Trial:
    """The same without QK-Norm in the arm that has it."""
    return replace(short(name, trial), choices=replace(short(name, trial).choices, qk_norm=False))


def test_qk_norm_removed_is_not_reproduced_and_is_without_the_removal(tmp_path: Path):
    whole, cells = CLAIMS["attention-logit-growth"], ("base@0.01", "@0.1")
    claim = replace(whole, expects=tuple(e for e in whole.expects if e.quantity != "ratio"))  # LR sensitivity takes a sweep, not two rates
    control, kept = ran(claim, short, cells, tmp_path)
    assert control.verdict == "reproduced" and kept["base_fires"] == 1 and kept["control_fires"] == 0
    runs = tmp_path / "quick" / "runs" / claim.name
    for arm, expected in (("base@0.1", "fired"), ("qk_norm@0.1", "clear"), ("base@0.01", "clear")):
        findings = sl.postmortem(runs / arm / "seed_0").findings
        assert {f.verdict for f in findings if f.code in ("SL201", "SL202")} == {expected}, arm
    flipped, found = ran(claim, removed, cells, tmp_path)
    assert flipped.verdict == "not reproduced"
    assert found["qk_norm_logit"] == kept["base_logit"] and found["control_fires"] == 1


def _of(claim: str, cell: str) -> Any:
    return CLAIMS[claim].full.cells[cell]


@pytest.mark.parametrize(
    ("code", "claim", "cell", "expected"),
    [
        ("SL601", "post-ln-warm-up", "Post-LN, none@6", 1),
        ("SL601", "post-ln-warm-up", "Post-LN, warm-up@6", 0),
        ("SL601", "post-ln-warm-up", "Pre-LN, none@6", 0),
        ("SL102", "post-ln-warm-up", "Post-LN, warm-up@24", 1),
        ("SL102", "post-ln-warm-up", "Post-LN, warm-up@12", 0),
        ("SL102", "post-ln-warm-up", "Pre-LN, warm-up@24", 0),
        ("SL104", "output-norm-without-qk-norm", "output", 1),
        ("SL104", "output-norm-without-qk-norm", "output, QK-Norm", 0),
        ("SL104", "output-norm-without-qk-norm", "pre", 0),
        ("SL105", "no-normalisation", "no norm", 1),
        ("SL105", "no-normalisation", "ReZero", 0),
        ("SL105", "no-normalisation", "LayerNorm", 0),
    ],
)
def test_rules_fire_at_the_right_arms_and_stay_silent_at_their_controls(code: str, claim: str, cell: str, expected: float, tmp_path: Path):
    found = _of(claim, cell)
    trial = found if isinstance(found, Trial) else Trial(replace(found, depth=16))
    _, run = train(replace(trial, steps=2, batch=1, choices=replace(trial.choices, width=8, heads=2, context=8)), 0, tmp_path)
    assert fires(run, code) == expected


#: of set-ups, what makes them long, and how little of it tells whether the seed decides
SHORTEST = {"steps": 11, "warmup": 2, "epochs": 1, "before": 3, "after": 3, "every": 5, "depth": 1, "least": 100, "batch": 32}
#: times are never the same twice
TIMED = ("rms-norm-speed",)
#: these only train and read the record, as post-ln-warm-up does, which stands for them
ALIKE = (
    "adaptive-norm", "attention-logit-growth", "gradient-clipping-as-safety-net", "learning-rate-transfer", "no-normalisation", "periodic-norm",
)  # fmt: skip


def shortest(cell: Any) -> Any:
    """The same set-up made short, where it is one that trains."""
    if isinstance(cell, tuple):
        return tuple(map(shortest, cell))
    if not is_dataclass(cell) or isinstance(cell, type):
        return cell
    inner = {f.name: shortest(getattr(cell, f.name)) for f in fields(cell) if is_dataclass(getattr(cell, f.name))}
    return replace(cell, **inner, **{f.name: SHORTEST[f.name] for f in fields(cell) if f.name in SHORTEST})


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.quick.seeds > 1 and c.name not in TIMED + ALIKE], ids=lambda claim: claim.name)
def test_a_measurement_depends_on_its_seed_alone(claim: Claim, tmp_path: Path):
    cell, found = shortest(next(iter(claim.quick.cells.values()))), []
    for state in (1, 2):
        torch.manual_seed(state)
        found.append(claim.measure(cell, 7, tmp_path / str(state)))
    assert found[0] == pytest.approx(found[1], rel=0, abs=0, nan_ok=True)


def judged(name: str, table: dict[str, Numbers]) -> tuple[str, Numbers]:
    """A claim's verdict on invented measurements, and its quantities."""
    claim = CLAIMS[name]
    quantities = claim.conclude(table)
    return verdict(outcomes(claim, [quantities])), quantities


def test_a_named_size_is_that_size_however_many_there_are():
    table = {name: {"update_rms": ratio / (ratio + 1)} for name, ratio in CLAIMS["epsilon-floor"].full.cells.items()}
    said, found = judged("epsilon-floor", table)
    assert said == "reproduced" and found["far_above"] == 1000 / 1001 and found["far_below"] == pytest.approx(0.01 / 1.01)
    jumps = {name: {"adam_rms": jump} for name, (_, jump) in CLAIMS["stale-second-moment"].full.cells.items()}
    assert judged("stale-second-moment", jumps | {"β2 = 0.8@5000": {"adam_rms": 9.0}})[1]["largest_0.8"] == 1000


def warm_ups(warm: tuple[float, ...], none: tuple[float, ...]) -> dict[str, Numbers]:
    """Losses of Post-LN at 6, 12 and 24 layers, beside Pre-LN that needs no warm-up."""
    post = {"Post-LN, warm-up": warm, "Post-LN, none": none, "Pre-LN, warm-up": (2.3,) * 3, "Pre-LN, none": (2.3,) * 3}
    return {f"{arm}@{depth}": {"loss": loss} for arm, losses in post.items() for depth, loss in zip((6, 12, 24), losses, strict=True)}


@pytest.mark.parametrize(
    ("warm", "none", "expected", "gain"),
    [
        ((2.4, 2.4, 2.5), (3.1, 3.1, 3.2), "reproduced", 0.7),
        ((2.4, 3.2, 3.2), (3.1, 3.2, 3.2), "partly", 0.7),
        ((2.4, 2.4, 3.2), (3.1, 2.5, 3.2), "not reproduced", 0.1),
        ((2.4, 3.2, 3.2), (3.1, 2.5, 3.2), "not reproduced", -0.7),
    ],
)
def test_what_a_warm_up_is_worth_is_asked_where_anything_is_learned(warm: tuple[float, ...], none: tuple[float, ...], expected: str, gain: float):
    said, found = judged("post-ln-warm-up", warm_ups(warm, none))
    assert said == expected and found["post_gain"] == pytest.approx(gain)
    assert math.isnan(judged("post-ln-warm-up", warm_ups((3.2,) * 3, none=(3.2,) * 3))[1]["post_gain"])


@pytest.mark.parametrize(("bf16", "int8", "expected"), [(1.0, 4.0, "mis-stated"), (2.0, 4.0, "reproduced"), (1.0, 1.0, "not reproduced"), (1.3, 4.0, "not reproduced")])
def test_norms_in_fp32_are_judged_by_norms_in_16_bits(bf16: float, int8: float, expected: str):
    assert judged("int8-norm-islands", {"layer": {"fp32": 1.0, "bf16": bf16, "int8": int8}})[0] == expected


@pytest.mark.parametrize(("logit", "disturbances", "expected"), [(1e4, 0.0, "mis-stated"), (50.0, 1.0, "mis-stated"), (50.0, 0.0, "partly")])
def test_clipping_is_judged_by_logits_and_by_what_disturbs_the_loss(logit: float, disturbances: float, expected: str):
    arm = {"max_logit": logit, "disturbances": disturbances, "loss": 2.5, "norm_after": 1.0, "update_rms": 0.1}
    assert judged("gradient-clipping-as-safety-net", {"clipped": arm, "not clipped": arm | {"disturbances": 0.0}})[0] == expected


@pytest.mark.parametrize("claim", [c for c in CLAIMS if any(e.role == "corrected" for e in c.expects)], ids=lambda claim: claim.name)
def test_where_the_words_are_expected_to_fail_the_page_begins_with_what_is_true(claim: Claim):
    assert claim.summary != claim.says and claim.says not in claim.page
