"""Sentences that people meet first: they say what is so, and what else there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stabilitylens._postmortem import postmortem
from stabilitylens.errors import BadInput
from stabilitylens.explain import explain
from stabilitylens.findings import Finding
from stabilitylens.readers import read_all
from stabilitylens.report import Subject
from stabilitylens.run import Run, Series

HELP = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        assert not left.code, name
    else:
        raise AssertionError(name)
"""


def test_every_benchmark_has_a_help() -> None:
    root = Path(__file__).parents[1]
    names = [f"benchmarks.{path.stem}" for path in sorted((root / "benchmarks").glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]
    done = subprocess.run([sys.executable, "-c", HELP, *names], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(names) > 5


def test_a_name_that_is_none_hears_of_every_kind_that_has_pages() -> None:
    with pytest.raises(BadInput, match="no rule, metric, incident, suspect or reader called 'SL999'"):
        explain("SL999")


def test_a_task_that_is_none_hears_which_there_are() -> None:
    from stabilitylens._advise import advise

    with pytest.raises(BadInput, match="'zzz'; it may be lm, vision, detection, speech or research"):
        advise(params=7e9, layers=32, task="zzz")


def test_a_plateau_is_of_the_whole_record() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(100, 700, 2)
    loss = Series("loss", steps, 3.2 + 0.01 * rng.standard_normal(len(steps)))
    report = postmortem(Run("flat", {"loss": loss}))
    (incident,) = [one for one in report.incidents if one.kind == "plateau"]
    assert re.fullmatch(r"loss did not come down from step 100 to 698: its median is 3\.\d+\.", incident.explanation)
    assert report.verdict.endswith("plateau of loss throughout")


def test_where_nothing_could_be_judged_nothing_is_said_to_be_well() -> None:
    missing = tuple(Finding("model", f"SL10{i}", "some-rule", "not_evaluated", lacks="the placement of the norms") for i in range(3))
    assert Subject("model", missing).headline == "not evaluated: none of 3 rules had what it needs"
    assert Subject("model", (*missing, Finding("model", "SL104", "other-rule", "clear"))).headline == "nothing fired: 1 rule clear, 3 not evaluated"


def test_a_link_that_leads_nowhere_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(BadInput, match="one is a symbolic link that leads back to itself; give"):
        read_all(tmp_path / "one")
    with pytest.raises(BadInput, match="gone is a symbolic link that leads to nowhere, which does not exist; give"):
        read_all(tmp_path / "gone")
