"""The table of counterfactuals: what it demands of an incident, what it leaves behind, and where its verdicts go."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_counterfactuals_members import BAD, Loop
from torch import Tensor, nn
from training import one_thread

import stabilitylens as sl
from stabilitylens.dumps import Dump, of_incident
from stabilitylens.errors import BadInput
from stabilitylens.hooks.counterfactuals import _member
from stabilitylens.hooks.counterfactuals._limits import Limits, limits_of
from stabilitylens.hooks.counterfactuals._member import Counterfactual, NotApplicable
from stabilitylens.hooks.counterfactuals._trial import Course, Trial
from stabilitylens.incidents import Incident
from stabilitylens.suspects import SUSPECTS, Opinion
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK
from stabilitylens.suspects._tested import swapped
from stabilitylens.suspects._tested import tested as after_tests


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def incident(tmp_path_factory) -> Path:
    with one_thread():
        return Loop().train(tmp_path_factory.mktemp("run"))


def hooks_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    modules = sum(len(v) for m in model.modules() for k, v in m.__dict__.items() if k.endswith("_hooks"))
    tensors = sum(len(p._post_accumulate_grad_hooks or ()) + len(p._backward_hooks or ()) for p in model.parameters())
    return modules + tensors + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def test_model_and_optimizer_are_left_in_the_state_before_the_incident(incident):
    loop = Loop()
    model, optimizer = loop.parts()
    parameters, groups = list(model.parameters()), optimizer.param_groups[0]
    before = {k: type(v) for k, v in groups.items()}
    states: dict[str, Tensor] = {}

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        now = {name: p.detach().clone() for name, p in model.named_parameters()}
        loss = loop.again(model, optimizer, batches)
        if float(loss) > 50 and not states:
            states.update(now)
        return loss

    table = sl.counterfactuals(incident, model, optimizer, watched)
    assert {row.verdict for row in table.rows} >= {"averts", "does not avert", "not applicable"}
    assert not any(row.verdict == "failed" for row in table.rows), table
    assert all(torch.equal(p, states[name]) for name, p in model.named_parameters())
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True)) and optimizer.param_groups[0] is groups
    assert {k: type(v) for k, v in groups.items()} == before and {k for m in model.modules() for k in m.__dict__ if k == "forward"} == set()
    assert all(float(s["step"]) == BAD - 1 for s in optimizer.state.values())
    assert hooks_of(model, optimizer) == 0
    assert torch.overrides._get_current_function_mode() is None


def test_a_counterfactual_that_breaks_or_does_not_apply_costs_no_other(incident, monkeypatch):
    def breaks(trial: Trial) -> None:
        trial.model.register_forward_pre_hook(lambda *_: None)
        raise ValueError("no such thing\nand more")

    def late(trial: Trial) -> None:
        def check() -> None:
            raise NotApplicable("nothing was there")

        trial.at_end(check)

    members = {"skip_batch": _member.COUNTERFACTUALS["skip_batch"]}
    members |= {act.__name__: Counterfactual(act.__name__, "", act, None, 0.0) for act in (breaks, late)}
    monkeypatch.setattr(_member.COUNTERFACTUALS, "_members", members)
    table = Loop().table(incident, "breaks", "late", "skip_batch")
    assert [(row.verdict, row.why) for row in table.rows] == [
        ("failed", "ValueError: no such thing"), ("not applicable", "nothing was there"), ("averts", ""),
    ]  # fmt: skip
    assert "ValueError: no such thing" in str(table) and table.averting == ["skip_batch"]


def test_nothing_is_tried_where_the_run_itself_does_not_show_the_incident(incident):
    loop = Loop()
    table = sl.counterfactuals(incident, *loop.parts(), loop.step)  # tells the loss as it is, not a hundredfold
    assert not table.shown and table.rows == ()
    assert "does not show the incident again" in str(table)
    assert after_tests("bad-batch", Opinion(0.5), table.to_dict()) == Opinion(0.5)


def test_what_follows_the_incident_is_said_and_the_same_for_all(incident):
    loop = Loop()
    table = loop.table(incident, "skip_batch", after=3)
    first = min(int(s) for s in table.baseline.losses)
    assert "once more" in table.on and table.after == 3 and max(table.baseline.losses) == BAD + 3
    assert table.snapshot_step == first
    later = [[torch.full((4, 6), i)] for i in range(5)]
    mine = loop.table(incident, "skip_batch", after=3, later=later)
    assert mine.on == "the batches of later=" and max(mine["skip_batch"].losses) == BAD + 3
    assert mine["skip_batch"].loss_after != table["skip_batch"].loss_after
    none = loop.table(incident, "skip_batch", after=0)
    assert math.isnan(none["skip_batch"].loss_after) and none["skip_batch"].verdict == "averts"


@pytest.mark.parametrize(("options", "says"), [
    ({"after": -1}, "after=-1"), ({"after": 1.5}, "after=1.5"), ({"later": [torch.ones(2)]}, "later="), ({"names": ["x"]}, "'x'"),
])  # fmt: skip
def test_wrong_arguments_are_a_sentence(options: dict[str, Any], says, incident):
    loop = Loop()
    with pytest.raises(BadInput, match=says):
        sl.counterfactuals(incident, *loop.parts(), loop.again, **options)


def test_a_step_that_tells_no_loss_is_said(incident):
    loop = Loop()

    def silent(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> None:
        loop.again(model, optimizer, batches)

    with pytest.raises(BadInput, match="returned no loss"):
        sl.counterfactuals(incident, *loop.parts(), silent)


class Kept:
    """Evidence of scalars alone."""

    def __init__(self, kinds: tuple[str, ...], *steps: dict[str, float]) -> None:
        self.manifest = type("M", (), {"kinds": kinds})
        self._scalars, self.steps, self.step = dict(enumerate(steps)), list(range(len(steps))), len(steps) - 1

    def scalar(self, step: int, name: str) -> float | None:
        return self._scalars[step].get(name)


def limits(kinds: tuple[str, ...], *losses: float, baseline: Course | None = None) -> Limits:
    return limits_of(Kept(kinds, *({"loss": v} for v in losses)), baseline or Course())  # type: ignore[arg-type]


def test_the_limit_is_the_detector_s_where_enough_is_known_and_halfway_where_not():
    calm = [1.9, 2.0, 2.1] * 4
    known = limits(("spike",), *calm, 9.0)
    assert 2.1 < known.loss < 4.5 and known.level == pytest.approx(math.sqrt(2.0 * known.loss))
    assert limits(("spike",), 2.0, 2.0, 8.0).loss == pytest.approx(4.0)
    assert math.isinf(limits(("nonfinite",), 2.0, 2.0, math.nan).loss)
    low = limits(("spike",), *[1.0, 1.5, 2.0] * 3, 4.1)  # the steps that were kept are wilder than all that the alarm knew
    assert low.loss == pytest.approx(math.sqrt(1.5 * 4.1))
    assert limits(("spike",), *[1.0, 1.5, 3.9] * 3, 4.1).loss == 3.9
    assert limits(("spike",), *calm, 3.5, 2.0, 9.0).loss == 3.5  # raised no alarm


def test_one_step_a_level_and_weights_decide():
    bar = limits(("spike",), *[1.9, 2.0, 2.1] * 4, 9.0)
    steps = {s: 2.0 for s in range(20)}

    def why(finite: bool = True, **other: float) -> str:
        return bar.against(Course(steps | {int(k[1:]): v for k, v in other.items()}, {}, {}, finite), 10)

    assert why() == ""
    assert why(s12=9.0) == "loss 9 at step 12" and "nan at step 3" in why(s3=math.nan)
    high = math.sqrt(bar.level * bar.loss)
    assert why(**{f"s{s}": high for s in range(11, 20)}) == "the loss stays up" and why(s15=high) == ""
    assert "not finite" in why(finite=False)


def test_a_spike_of_the_gradient_is_judged_by_the_norm():
    past = [{"loss": 2.0, "grad_norm": 1.0 + 0.1 * (i % 3)} for i in range(10)]
    kept = Kept(("grad_spike",), *past, {"loss": 2.0, "grad_norm": 30.0})
    steps = dict.fromkeys(range(11), 2.0)
    base = Course(steps, dict.fromkeys(range(10), 1.0) | {10: 30.0}, dict.fromkeys(range(11), 1.0))
    bar = limits_of(kept, base)  # type: ignore[arg-type]
    assert bar.norm is not None and 1.2 < bar.norm < 30 and not bar.clipped
    assert bar.bad(base, 10) and not bar.bad(base, 9) and "gradient norm 30 at step 10" == bar.against(base, 10)


def row(name: str, suspect: str | None, verdict: str, weight: float = STRONG) -> dict[str, Any]:
    return {"name": name, "suspect": suspect, "verdict": verdict, "weight": weight, "why": "", "loss_after": 2.31}


def odds(opinion: Opinion) -> float:
    return math.log(opinion.score / (1 - opinion.score))


def test_a_verdict_moves_the_score_by_the_weight_that_it_states():
    table = {"shown": True, "rows": [row("skip_batch", "bad-batch", "averts"), row("fp32", "fp16-overflow", "does not avert", DECISIVE)]}
    bad = after_tests("bad-batch", Opinion(0.2), table)
    assert odds(bad) == pytest.approx(odds(Opinion(0.2)) + STRONG, abs=0.01)
    assert bad.evidence_for == ("tested on a replay: skip_batch averts it (loss after 2.31)",)
    assert "skip_batch with a larger after=" in bad.experiment
    half = after_tests("fp16-overflow", Opinion(0.3), table)
    assert odds(half) == pytest.approx(odds(Opinion(0.3)) - DECISIVE, rel=0.02) and half.excluded
    assert half.evidence_against == ("tested on a replay: fp32 does not avert it",)
    assert after_tests("hardware", Opinion(0.3), table) == Opinion(0.3)


def test_of_several_tests_of_a_suspect_one_that_averts_it_decides():
    rows = [row("halve_lr", "learning-rate", "does not avert", 1.5), row("steady_lr", "learning-rate", "averts", DECISIVE)]
    found = after_tests("learning-rate", Opinion(0.2), {"shown": True, "rows": rows})
    assert odds(found) == pytest.approx(odds(Opinion(0.2)) + DECISIVE, rel=0.02)
    assert len(found.evidence_for) == len(found.evidence_against) == 1


def test_where_most_changes_avert_it_none_says_much():
    rows = [row(f"r{i}", "bad-batch" if i == 0 else None, "averts" if i < 3 else "does not avert") for i in range(4)]
    found = after_tests("bad-batch", Opinion(0.2), {"shown": True, "rows": rows})
    assert odds(found) == pytest.approx(odds(Opinion(0.2)) + WEAK, abs=0.01) and "most changes" in found.evidence_for[0]


@pytest.mark.parametrize(("verdict", "nats"), [("data", FAIR), ("state", -STRONG), ("both", 0), ("either", 0), ("neither", 0)])
def test_whether_data_or_state_did_it_moves_the_bad_batch(verdict: str, nats: float):
    replay = {"exact": True, "cause": {"verdict": verdict, "sentence": "as it was found"}}
    found = swapped("bad-batch", Opinion(0.2), replay)
    assert odds(found) == pytest.approx(odds(Opinion(0.2)) + nats, abs=0.05)
    assert found.evidence_for == (("tested on a replay: as it was found",) if nats > 0 else ())
    assert found.evidence_against == (("tested on a replay: as it was found",) if nats < 0 else ())
    assert swapped("hardware", Opinion(0.2), replay) == Opinion(0.2)


@pytest.mark.parametrize("replay", [None, {"exact": False, "cause": {"verdict": "data", "sentence": ""}}, {"exact": True, "cause": None}, {"exact": True}])
def test_a_replay_that_is_not_exact_or_looked_at_no_cause_moves_nothing(replay: dict[str, Any] | None):
    assert swapped("bad-batch", Opinion(0.2), replay) == Opinion(0.2)


def spike(start: int, end: int) -> Incident:
    return Incident("spike", "loss", start, end, start, end, start, start, 2, 9.0, "fast", 5, "warning", 0.9, "loss rose")


def test_a_table_is_of_the_incident_that_it_lies_in_or_next_to():
    table = {"rows": [], "shown": True}
    dumps = (Dump(50, "", "a", table), Dump(90, "", "b", table), Dump(60, "", "c"))
    found = [of_incident(dumps, spike(*steps)) for steps in ((50, 55), (84, 88), (59, 61), (200, 210))]
    assert [d and d.folder for d in found] == ["a", "b", "c", None]
    twice = (Dump(58, "", None), Dump(60, "", "there"), Dump(55, "", "tested", table))
    assert [of_incident(twice[:n], spike(58, 58)).folder for n in (1, 2, 3)] == [None, "there", "tested"]


def test_the_weights_are_those_of_suspects():
    assert all(member.suspect in SUSPECTS for member in _member.COUNTERFACTUALS if member.suspect)
