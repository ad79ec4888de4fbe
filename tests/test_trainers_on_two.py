"""Real trainers on two processes: the same training with and without the lens, one record of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from processes import on
from trainers_on_two import STEPS, on_each_rank

import stabilitylens as sl

pytest.importorskip("transformers")
pytest.importorskip("lightning")
KINDS = ["huggingface", "lightning"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    folder = tmp_path_factory.mktemp("two")
    return folder, on(2, on_each_rank, str(folder), KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_training_is_the_same_and_one_process_records_it(kind, results):
    folder, ranks = results
    for bare, again, mine in (given[kind] for given in ranks):
        assert len(bare["losses"]) == STEPS and bare["losses"] == again["losses"] == mine["losses"]
        assert all(map(torch.equal, bare["state"], again["state"])) and all(map(torch.equal, bare["state"], mine["state"]))
    assert ranks[0][kind][0]["losses"] != ranks[1][kind][0]["losses"], "the processes have the same data"
    assert len(list((folder / kind / "stabilitylens").iterdir())) == 2, "one event file and one array file"
    run = sl.load(folder / kind)
    both = np.mean([given[kind][2]["losses"] for given in ranks], axis=0)
    assert run["loss"].values == pytest.approx(both, rel=1e-5)
    assert run["grad_norm"].steps.tolist() == [1, 2, 3] and (run["grad_norm_clipped"].values <= 0.5 + 1e-4).all()
    assert run["max_attn_logit"].values.shape == (STEPS, 3, 4)
    assert run["rank_loss"].values == pytest.approx(np.transpose([given[kind][2]["losses"] for given in ranks]), rel=1e-5)
    assert not run.events, run.events
