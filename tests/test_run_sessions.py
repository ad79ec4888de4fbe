"""Several sessions of one run: the later counts, the earlier is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitylens.header import Header, MetricMeta
from stabilitylens.readers._merge import Piece, Session, join, split
from stabilitylens.run import Run, load
from stabilitylens.writers.recording import RunWriter


def session(folder: Path, steps: range, value: float, resume: int | None = None, heads: int = 2) -> None:
    writer = RunWriter(folder, resume_step=resume)
    writer.header(Header(
        metrics={"max_attn_logit": MetricMeta("max_attn_logit", "1", ("attention head",), "")}, sampling={"value": value},
    ))
    for step in steps:
        writer.step(step, {"loss": value})
        if step % 10 == 0:
            writer.sample(step, {"max_attn_logit/attention_head": np.full((3, heads), value)})
    writer.event(steps[-1], "end", str(value))
    writer.close()


def points(run: Run, name: str = "loss") -> dict[int, float]:
    return dict(zip(run[name].steps.tolist(), run[name].values.reshape(len(run[name]), -1)[:, 0].tolist(), strict=True))


def test_a_resumed_run_is_one_run_and_keeps_the_other_branch(tmp_path: Path) -> None:
    session(tmp_path, range(100), 1.0)
    session(tmp_path, range(60, 80), 2.0, resume=60)
    run = load(tmp_path)
    assert points(run) == {s: 1.0 if s < 60 else 2.0 for s in range(80)}
    assert points(run, "max_attn_logit") == {s: 1.0 if s < 60 else 2.0 for s in range(0, 80, 10)}
    assert run.header.sampling == {"value": 2.0}
    assert [event.text for event in run.events] == ["2.0"]
    (earlier,) = run.superseded
    assert points(earlier) == dict.fromkeys(range(60, 100), 1.0)
    assert points(earlier, "max_attn_logit") == dict.fromkeys(range(60, 100, 10), 1.0)
    assert [event.text for event in earlier.events] == ["1.0"]
    assert run.notes == [
        "steps 60 to 99 of an earlier session were recorded again after a resume; "
        "the earlier ones are kept in run.superseded"
    ]


def test_a_resume_that_loses_nothing_says_nothing(tmp_path: Path) -> None:
    session(tmp_path, range(50), 1.0)
    session(tmp_path, range(50, 90), 2.0, resume=50)
    run = load(tmp_path)
    assert run.notes == [] and run.superseded == []
    assert run["loss"].steps.tolist() == list(range(90))


def test_a_run_from_the_beginning_in_the_same_folder_supersedes_all(tmp_path: Path) -> None:
    session(tmp_path, range(50), 1.0)
    session(tmp_path, range(20), 2.0)
    run = load(tmp_path)
    assert points(run) == dict.fromkeys(range(20), 2.0)
    assert points(run.superseded[0]) == dict.fromkeys(range(50), 1.0)


@pytest.mark.parametrize("damaged", ["events", "arrays"])
def test_the_resume_step_survives_damage_of_either_file(tmp_path: Path, damaged: str) -> None:
    session(tmp_path, range(100), 1.0)
    session(tmp_path, range(60, 62), 2.0, resume=60)
    path = sorted((tmp_path / "stabilitylens").glob(f"{damaged}.*"))[-1]
    content = bytearray(path.read_bytes())
    # the record that tells it: the first of the arrays, the second of the events
    content[20 if damaged == "arrays" else 16 + int.from_bytes(content[:8], "little") + 14] ^= 1
    path.write_bytes(content)
    run = load(tmp_path)
    assert any("damaged" in note for note in run.notes)
    assert points(run) == {s: 1.0 if s < 60 else 2.0 for s in range(62)}


def test_two_sessions_at_once_write_files_of_their_own(tmp_path: Path) -> None:
    first, second = RunWriter(tmp_path), RunWriter(tmp_path, resume_step=5)
    for step in range(10):
        first.step(step, {"loss": 1.0})
        second.step(step + 5, {"loss": 2.0})
    first.close()
    second.close()
    names = [path.name for path in (tmp_path / "stabilitylens").iterdir()]
    assert len(names) == 4 and {"arrays.0.sl", "arrays.1.sl"} <= set(names)
    run = load(tmp_path)
    assert points(run) == {s: 1.0 if s < 5 else 2.0 for s in range(15)}
    assert points(run.superseded[0]) == dict.fromkeys(range(5, 10), 1.0)


def test_event_files_are_named_in_the_order_of_sessions(tmp_path: Path) -> None:
    for _ in range(12):
        RunWriter(tmp_path).close()
    names = sorted(path.name for path in (tmp_path / "stabilitylens").glob("events.*"))
    assert [int(name.rsplit(".", 1)[1]) for name in names] == list(range(12))


def test_another_number_of_heads_is_padded_with_nan(tmp_path: Path) -> None:
    session(tmp_path, range(20), 1.0, heads=2)
    session(tmp_path, range(20, 40), 2.0, resume=20, heads=4)
    values = load(tmp_path)["max_attn_logit"].values
    assert values.shape == (4, 3, 4)
    assert np.isnan(values[:2, :, 2:]).all() and (values[2:] == 2).all() and (values[:2, :, :2] == 1).all()


def test_arrays_that_come_and_go_keep_their_order(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step in range(10):
        extra = {"adam_rms/layer": np.full(2, float(step))} if step % 3 == 0 else {}
        writer.sample(step, {"resid_rms/layer": np.full(2, float(step)), **extra})
    writer.close()
    run = load(tmp_path)
    assert run["resid_rms"].steps.tolist() == list(range(10))
    assert run["resid_rms"].values[:, 0].tolist() == list(range(10))
    assert run["adam_rms"].steps.tolist() == [0, 3, 6, 9]


def test_a_scalar_of_every_step_counts_over_the_sampled_one(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step in range(1, 21):
        if step > 5:
            writer.step(step, {"grad_norm": float(step)})
        if step % 5 == 0:
            writer.sample(step, {"grad_norm": np.array(-1.0), "grad_norm/layer": np.ones(2)})
    writer.close()
    run = load(tmp_path)
    assert points(run, "grad_norm") == {5: -1.0} | {step: float(step) for step in range(6, 21)}
    assert run["grad_norm"].axes == () and run["grad_norm/layer"].axes == ("layer",)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(allow_nan=False)), min_size=1, max_size=30), st.integers(1, 4))
def test_the_last_record_of_a_step_counts(records: list[tuple[int, float]], cuts: int) -> None:
    parts = np.array_split(np.arange(len(records)), cuts)
    steps, values = np.array([s for s, _ in records]), np.array([v for _, v in records])
    whole = join([Piece(steps[part], values[part]) for part in parts])
    assert dict(zip(whole.steps.tolist(), whole.values.tolist(), strict=True)) == dict(records)
    assert (np.diff(whole.steps) > 0).all()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=5))
def test_sessions_are_split_without_loss(spans: list[tuple[int, int]]) -> None:
    sessions = [
        Session(restart=begin if i else None, series={"loss": [Piece(np.arange(begin, begin + n), np.full(n, float(i)))]})
        for i, (begin, n) in enumerate(spans)
    ]
    for i, (kept, lost) in enumerate(split(sessions)):
        later = [begin for begin, _ in spans[i + 1:]]
        begin, n = spans[i]
        steps = [s for part in (kept, lost) for piece in part.series.get("loss", []) for s in piece.steps.tolist()]
        assert steps == list(range(begin, begin + n))
        assert all(s < min(later, default=99) for piece in kept.series.get("loss", []) for s in piece.steps)
        assert all(s >= min(later, default=99) for piece in lost.series.get("loss", []) for s in piece.steps)
