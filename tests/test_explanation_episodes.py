"""Three things that happen to a real run, recorded by the lens: found, placed, and the right suspect first."""

from __future__ import annotations

from pathlib import Path

import pytest

import stabilitylens as sl
from stabilitylens.report import Report
from tests import episodes

#: the lens counts steps from 1
HAPPENED = episodes.AT + 1


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory):
    """Each episode on its first use: workers that share this file record what their own tests ask for."""
    folder, done = tmp_path_factory.mktemp("episodes"), {}

    def recording(kind: str) -> Path:
        if kind not in done:
            done[kind] = episodes.record(kind, folder / kind)
        return done[kind]

    return recording


def of_loss(report: Report):
    return [incident for incident in report.incidents if incident.metric == "loss"]


@pytest.mark.parametrize(
    ("kind", "suspect", "evidence"),
    [("lr", "learning-rate", "× 30"), ("labels", "bad-batch", "at its first point"), ("batch", "bad-batch", "one log wide")],
)
def test_the_episode_is_found_and_placed_and_its_cause_comes_first(kind: str, suspect: str, evidence: str, recorded) -> None:
    report = sl.postmortem(recorded(kind))
    main = next(incident for incident in of_loss(report) if abs(incident.start_step - HAPPENED) <= 3)
    first, second = report.suspects[:2]
    assert first["name"] == suspect and first["score"] > max(0.6, 1.5 * second["score"])
    assert report.incidents[first["incident"]] == main
    assert any(evidence in text for text in first["evidence_for"]) and first["experiment"]
    assert f"{first['score']:.2f}  {suspect}" in str(report)
    others = {entry["name"] for entry in report.suspects if entry["excluded"]}
    assert {"cold-optimizer", "fp16-overflow", "attention-logit-growth", "masked-rows"} <= others


def test_nothing_is_wrong_with_the_healthy_run(recorded) -> None:
    report = sl.postmortem(recorded("healthy"))
    assert not report.at_or_above("warning") and not of_loss(report) and report.suspects == []


def test_the_step_at_which_the_learning_rate_left_the_healthy_run_is_found_to_the_bit(recorded) -> None:
    found = sl.compare(recorded("healthy"), recorded("lr"))
    (pair,) = found.pairs
    assert pair.first is not None and (pair.first.series, pair.first.step) == ("lr", HAPPENED)
    loss = next(parting for parting in pair.partings if parting.series == "loss")
    assert loss.equal_until == HAPPENED and loss.step is not None and loss.step - HAPPENED <= 3
    resid = next(table for table in pair.ratios if table.series == "resid_rms/layer")
    assert len(resid.ratios) == episodes.SHAPE.depth and min(resid.ratios) > 3
