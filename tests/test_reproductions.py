"""Claims: every one is whole, the runner can say no, and goes on where it was stopped."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stabilitylens.cli import app
from stabilitylens.errors import BadInput
from stabilitylens.reproductions import CLAIMS, Claim, Expect, Ledger, Outcome, chosen, reproduce, verdict
from stabilitylens.reproductions._markdown import cell
from stabilitylens.reproductions._popular import POPULAR, Popular
from stabilitylens.reproductions._store import what_measures
from tests.invented_claims import await_, calls, invented

#: a third of the ledger that needs no long training; the others run by `stabilitylens reproduce all --quick`
FAST = (
    "entropy-bound", "epsilon-floor", "fp16-against-bf16", "how-many-norms", "int8-norm-islands", "norms-differ-by-a-mean",
    "rank-collapse", "stale-second-moment", "where-norms-stand",
)  # fmt: skip
#: what is counted once, for nothing is random
COUNTED = ("how-many-norms", "where-norms-stand")
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_every_claim_is_whole(claim: Claim):
    assert claim.measure.__module__.rpartition(".")[2] == claim.name.replace("-", "_")
    assert "http" in claim.paper and claim.says.endswith(".") and claim.summary.endswith(".") and claim.bigger
    assert any(expect.role == "decisive" for expect in claim.expects)
    for expect in claim.expects:
        assert expect.low <= expect.high and (math.isfinite(expect.low) or math.isfinite(expect.high))
    for plan in (claim.quick, claim.full):
        assert plan.cells and plan.seeds >= (1 if claim.name in COUNTED else 3)
        if claim.picture is not None:
            assert all(float(name.partition("@")[2]) > 0 for name in plan.cells)
    assert claim.quick.seconds <= claim.full.seconds


def test_budgets_add_up_on_two_cores():
    assert sum(claim.quick.seconds for claim in CLAIMS) <= 2 * 6 * 60
    assert sum(claim.full.seconds for claim in CLAIMS) <= 2 * 120 * 60


def test_fast_is_a_third():
    assert 3 * len(FAST) >= len(CLAIMS)


@pytest.mark.parametrize("name", FAST)
def test_a_third_of_the_ledger_in_its_quick_form(name: str, tmp_path: Path):
    (entry,) = reproduce(chosen([name]), "quick", tmp_path, workers=1).entries
    assert not entry.reason and entry.verdict in ("reproduced", "partly", "mis-stated")
    assert {o.expect.quantity for o in entry.outcomes} == {e.quantity for e in CLAIMS[name].expects}
    assert all(math.isfinite(v) or v > 0 for o in entry.outcomes for v in o.values)


def outcome(role: str, *values: float) -> Outcome:
    return Outcome(Expect("q", "a quantity", 0, 1, role), values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([outcome("decisive", 0.5, 0.5)], "reproduced"),
        ([outcome("decisive", 0.5, 0.5), outcome("supporting", 0.5, 2)], "partly"),
        ([outcome("decisive", 0.5, 0.5, 2)], "partly"),
        ([outcome("decisive", 0.5, 2)], "not reproduced"),
        ([outcome("decisive", math.nan)], "not reproduced"),
        ([outcome("decisive", 2.0), outcome("corrected", 0.5)], "mis-stated"),
        ([outcome("decisive", 2.0), outcome("corrected", 0.5, 2)], "not reproduced"),
        ([outcome("decisive", 0.5), outcome("corrected", 0.5)], "reproduced"),
    ],
)
def test_verdicts(found: list[Outcome], expected: str):
    assert verdict(found) == expected


def lacking(*cells: float) -> Claim:
    """A claim that also expects what no measurement has."""
    claim = invented(*cells)
    return replace(claim, expects=(*claim.expects, Expect("absent", "never observed", low=0, role="supporting")))


@pytest.mark.parametrize("workers", [1, 2])
def test_goes_on_where_it_was_and_sees_another_set_up(tmp_path: Path, workers: int):
    first = reproduce([lacking(1, 2)], "quick", tmp_path, workers=workers)
    assert calls(tmp_path) == 4 and first.entries[0].verdict == "partly"
    assert first.entries[0].cells == {"arm@1": {"value": [1.0, 2.0]}, "arm@2": {"value": [2.0, 3.0]}}
    victim = tmp_path / "quick" / "results" / "noted" / "arm@1" / "seed_1.json"
    victim.write_text(victim.read_text()[:-3])
    again = reproduce([lacking(1, 2)], "quick", tmp_path, workers=workers)
    assert calls(tmp_path) == 5 and again.entries[0].cells == first.entries[0].cells
    assert reproduce([lacking(1, 9)], "quick", tmp_path, workers=workers).entries[0].verdict == "not reproduced"
    assert calls(tmp_path) == 7


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are read from /proc")
def test_workers_leave_with_what_started_them(tmp_path: Path):
    command = [sys.executable, "-m", "stabilitylens", "reproduce", "no-normalisation", "--workers", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        await_(lambda: (tmp_path / "quick" / "runs").exists())
        workers = [Path("/proc", pid) for pid in listed.read_text().split()]
    finally:
        process.kill()
        process.wait()
    assert len(workers) >= 2
    await_(lambda: not any(worker.exists() for worker in workers))


CODE = '''"""A page."""
@claim(says="one", quick=Plan({}, seeds=3, seconds=5))
@torch.no_grad()
def measure(cell, seed, folder):
    """What it does."""
    return {"value": 1.0}
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [("A page.", "Another.", True), ("What it does.", "More.", True), ("seconds=5", "seconds=9", True), ("1.0", "2.0", False), ("@torch.no_grad()", "", False)],
)
def test_only_code_that_measures_makes_a_result_stale(old: str, new: str, same: bool):
    assert (what_measures(CODE.replace(old, new)) == what_measures(CODE)) == same


def test_what_cannot_run_is_said_and_the_ledger_reads_back(tmp_path: Path):
    made = reproduce([lacking(1, 2), replace(lacking(-1.0), name="lacking")], "quick", tmp_path, workers=1)
    assert made.entries[1].verdict == "not run" and made.entries[1].reason == "this cell needs what is not there"
    again = Ledger.read(tmp_path / "quick" / "ledger.json")
    assert json.dumps(again.to_dict()) == json.dumps(made.to_dict()) and again.entries[0].outcomes[0] == made.entries[0].outcomes[0]
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadInput, match="is no ledger"):
        Ledger.read(tmp_path / "bad.json")


def test_the_command_lists_runs_and_writes_a_page(tmp_path: Path):
    runner = CliRunner()
    listed = runner.invoke(app(), ["reproduce"]).stdout
    assert all(claim.name in listed for claim in CLAIMS)
    common = ["reproduce", "rank_collapse", "--quick", "--workers", "1", "--out", str(tmp_path / "out")]
    shown = runner.invoke(app(), common)
    assert shown.exit_code == 0 and "rank-collapse: reproduced" in shown.stdout and "━" in shown.stdout and "●" in shown.stdout
    told = json.loads(runner.invoke(app(), [*common, "--format", "json"]).stdout)
    assert told["entries"][0]["verdict"] == "reproduced" and told["mode"] == "quick"
    page = tmp_path / "claims.md"
    assert runner.invoke(app(), [*common, "--format", "markdown", "-o", str(page)]).exit_code == 0
    assert "**reproduced**" in page.read_text() and "<svg" in (tmp_path / "images" / "claims" / "rank-collapse.svg").read_text()
    for wrong, says in ((["reproduce", "nonsense"], "nonsense"), ([*common, "--format", "markdown"], "give it a file")):
        assert says in str(runner.invoke(app(), wrong).exception)


@pytest.mark.parametrize("popular", POPULAR, ids=lambda popular: popular.said)
def test_what_is_often_said_is_answered_by_something_measured(popular: Popular):
    assert popular.evidence
    for name, quantity in popular.evidence:
        assert quantity in {expect.quantity for expect in CLAIMS[name].expects}


@pytest.mark.skipif(not (ROOT / "docs" / "claims.md").exists(), reason="the sources are out of reach")
def test_the_page_has_every_claim_as_it_is_now():
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    for claim in CLAIMS:
        assert f"\n## {claim.name}\n" in page and claim.says in page, f"{claim.name}: run all claims again for the page"
        assert all(f"| {cell(expect.text)} |" in page for expect in claim.expects)
    for popular in POPULAR:
        assert popular.said in page and popular.instead in page
        assert (ROOT / "docs" / "images" / "claims" / f"{claim.name}.svg").exists()
