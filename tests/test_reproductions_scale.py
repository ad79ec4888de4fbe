"""Claims at another width, and dealt over the ranks of a torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stabilitylens.errors import BadInput
from stabilitylens.reproductions import CLAIMS, Choices, Ledger, Trial, chosen, reproduce
from stabilitylens.reproductions._ranks import Ranks
from stabilitylens.reproductions._scale import has_width, scaled

NAME = "output-norm-without-qk-norm"


def test_the_widest_model_gets_the_width_and_heads_stay_as_wide():
    own = CLAIMS["attention-logit-growth"]
    growth = scaled(own, "quick", 256)
    assert {(cell.choices.width, cell.choices.heads) for cell in growth.quick.cells.values()} == {(256, 16)}
    assert growth.full == own.full
    assert growth.quick.cells["base@0.1"] == replace(
        own.quick.cells["base@0.1"], choices=growth.quick.cells["base@0.1"].choices
    )
    kind, choices = scaled(CLAIMS["fp16-against-bf16"], "quick", 128).quick.cells["fp16"]
    assert kind == CLAIMS["fp16-against-bf16"].quick.cells["fp16"][0] and choices == Choices(width=128, heads=8)


def test_of_several_widths_all_grow_by_one_factor_and_mup_keeps_its_heads():
    cells = scaled(CLAIMS["learning-rate-transfer"], "quick", 512).quick.cells
    told = {name.partition("@")[0]: (trial.choices.width, trial.choices.heads) for name, trial in cells.items()}
    assert told == {
        "usual, width 32": (128, 16), "usual, width 128": (512, 16), "muP, width 32": (128, 4), "muP, width 128": (512, 4),
    }  # fmt: skip


def test_grouped_queries_stay_grouped():
    claim = CLAIMS["adaptive-norm"].with_cells(lambda _, cell: Trial(Choices(width=64, heads=4, kv_heads=2)))
    assert {(c.choices.heads, c.choices.kv_heads) for c in scaled(claim, "quick", 128).quick.cells.values()} == {(8, 4)}


@pytest.mark.parametrize(("name", "width", "says"), [("rank-collapse", 64, "no Transformer"), (NAME, 100, "take a multiple of 32")])
def test_what_cannot_be_widened_is_said(name: str, width: int, says: str):
    with pytest.raises(BadInput, match=says):
        scaled(CLAIMS[name], "quick", width)


def test_all_means_all_that_can_be_widened():
    assert chosen(["all"], wide=True) == [claim for claim in CLAIMS if has_width(claim)]
    assert len(chosen(["all"], wide=True)) < len(chosen(["all"])) == len(CLAIMS)


def test_ranks_share_everything_once():
    parts = [Ranks(rank, 3).mine(list(range(10))) for rank in range(3)]
    assert sorted(sum(parts, [])) == list(range(10)) and {len(part) for part in parts} == {3, 4}
    assert Ranks().gathered({1: "one"}) == {1: "one"}


def test_two_ranks_measure_what_one_process_measures(tmp_path: Path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "stabilitylens"]
    command = [*torchrun, "reproduce", NAME, "--quick", "--scale", "32", "--out", str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("quick plans with models up to 32 wide") == 1
    two = Ledger.read(tmp_path / "two" / "width_32" / "quick" / "ledger.json")
    one = reproduce(chosen([NAME]), "quick", tmp_path / "one", workers=1, scale=32)
    assert two.scale == one.scale == 32 and two.entries[0].cells == one.entries[0].cells
