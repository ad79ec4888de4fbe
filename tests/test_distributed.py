"""Parallel training of every kind: equal to the bit with and without the lens, and recorded as by one process.

Ranks are given unequal data; the oracle is one process that trains on the data of all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import stabilitylens as sl

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or not dist.is_gloo_available(), reason="needs gloo"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

#: kinds by number of processes, each with the number of places in its data; the pipelines are of the second data set
KINDS = {
    2: {
        "ddp": 2, "by_hand": 2, "fsdp2": 2, "fsdp2_not_resharded": 2, "fsdp2_sparse": 2, "fsdp2_mixed": 2, "fsdp1": 2,
        "fsdp1_flat": 2, "tp": 2, "sp": 2, "pp": 2, "pp_numbered_from_0": 2, "ddp_experts": 2, "fsdp2_experts": 2,
    },
    4: {"ddp4": 4, "hsdp": 4, "fsdp2_tp": 2, "pp4": 2, "pp_fsdp2": 2, "fsdp2_ep": 2},
}  # fmt: skip
ALL = [kind for kinds in KINDS.values() for kind in kinds]
#: every per-layer quantity of these is the oracle's
EXACT = [kind for kind in ALL if kind not in ("fsdp2_mixed", "fsdp1_flat", "fsdp2_sparse")]
#: what a kind cannot show, and says so
LACKS = {
    "tp": {"query_proj_norm", "key_proj_norm"}, "fsdp2_tp": {"query_proj_norm", "key_proj_norm"},
    "sp": {"query_proj_norm", "key_proj_norm", "log_z"},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    from parallel import run_all
    from processes import on

    folder = tmp_path_factory.mktemp("parallel")
    results = {}
    for size, kinds in KINDS.items():
        given = on(size, run_all, list(kinds), str(folder), limit=300)
        results |= {kind: [one[kind] for one in given] for kind in kinds}
    return folder, results


@pytest.fixture(scope="module")
def oracles(tmp_path_factory):
    from parallel import mixture
    from processes import batches, model, train

    folder: Path = tmp_path_factory.mktemp("oracle")
    for places in (2, 4):
        train(model(), lambda step, n=places: batches(step, range(n)), str(folder / str(places)))
    train(model(), lambda step: batches(step, (0, 1)), str(folder / "long"), steps=6)
    train(mixture(), lambda step: batches(step, (0, 1)), str(folder / "experts"))
    return {path.name: sl.load(path) for path in folder.iterdir()}


def oracle_of(kind, oracles):
    places = next(kinds[kind] for kinds in KINDS.values() if kind in kinds)
    return oracles["experts" if kind.endswith(("experts", "_ep")) else str(places)]


def worked(runs, kind):
    folder, results = runs
    for one in results[kind]:
        assert not isinstance(one, str), one
    return folder / kind, results[kind]


@pytest.mark.parametrize("kind", ALL)
def test_training_is_equal_to_the_bit(runs, kind):
    _, results = worked(runs, kind)
    for bare, seen in results:
        assert len(bare["losses"]) == len(seen["losses"])
        assert all(map(torch.equal, bare["losses"], seen["losses"]))
        assert all(torch.equal(value, seen["state"][name]) for name, value in bare["state"].items())
        assert torch.equal(bare["rng"], seen["rng"])


@pytest.mark.parametrize("kind", ALL)
def test_one_process_writes(runs, kind):
    folder, _ = worked(runs, kind)
    assert sorted(p.name.split(".")[0] for p in (folder / "stabilitylens").iterdir()) == ["arrays", "events"]


@pytest.mark.parametrize("kind", EXACT)
def test_everything_equals_one_process_on_all_data(runs, oracles, kind):
    folder, _ = worked(runs, kind)
    recorded, oracle = sl.load(folder), oracle_of(kind, oracles)
    lacks = LACKS.get(kind, set())
    for name in oracle:
        metric = name.partition("/")[0]
        if metric in lacks or metric == "step_time":
            continue
        assert name in recorded, name
        assert recorded[name].labels == oracle[name].labels, name
        np.testing.assert_allclose(recorded[name].values, oracle[name].values, rtol=1e-5, atol=1e-12, err_msg=name)
    assert recorded.header.coverage.parameters == oracle.header.coverage.parameters
    assert recorded.header.coverage.layers == oracle.header.coverage.layers


@pytest.mark.parametrize("kind", sorted(LACKS))
def test_what_a_kind_lacks_is_said(runs, kind):
    recorded = sl.load(worked(runs, kind)[0])
    assert all(recorded.why_missing(name) for name in LACKS[kind])


def test_sharded_gradient_norms_of_every_step(runs, oracles):
    recorded = sl.load(worked(runs, "fsdp2_sparse")[0])
    assert list(recorded["resid_rms"].steps) == [1, 4]
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(recorded[name].values, oracles["long"][name].values, rtol=1e-5, err_msg=name)


def test_mixed_precision_is_near(runs, oracles):
    recorded = sl.load(worked(runs, "fsdp2_mixed")[0])
    for name in ("grad_norm/layer", "param_norm/layer", "resid_rms/layer", "attn_entropy/attention_head"):
        np.testing.assert_allclose(recorded[name].values[0], oracles["2"][name].values[0], rtol=0.03, err_msg=name)


def test_flat_parameters_have_no_layers(runs):
    recorded = sl.load(worked(runs, "fsdp1_flat")[0])
    for name in ("grad_norm", "param_norm", "update_ratio", "adam_rms"):
        assert name not in recorded
        assert "flat parameter" in recorded.why_missing(name)
    assert np.isfinite(recorded["resid_rms"].values).all()


def test_each_rank_has_numbers_of_its_own(runs):
    folder, results = worked(runs, "ddp")
    recorded = sl.load(folder)
    own = np.array([[loss.item() for loss in bare["losses"]] for bare, _ in results]).T
    np.testing.assert_allclose(recorded["rank_loss"].values, own, rtol=1e-6)
    assert (np.ptp(recorded["rank_resid_grad_norm"].values, axis=1) > 0).all()
    assert not recorded.events


@pytest.mark.parametrize("kind", ["fsdp2", "tp", "hsdp", "pp", "pp4", "pp_fsdp2"])
def test_the_anatomy_is_of_the_whole_model(runs, oracles, kind):
    told, whole = sl.load(worked(runs, kind)[0]).header.anatomy, oracles["2"].header.anatomy
    for name in ("n_layers", "n_attention", "n_parameters", "norm_placement", "final_norm", "layers", "d_model"):
        assert getattr(told, name) == getattr(whole, name), name
    assert [(s.layer, s.module, s.placement) for s in told.sub_layers] == [(s.layer, s.module, s.placement) for s in whole.sub_layers]
