"""Two processes keep, dump together, and run again to the bit: DDP and FSDP2."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from processes import batch, loss_of, model, on
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.evidence import INCIDENTS, Evidence

STEPS, BAD = 14, 12


def build(kind):
    m = model(torch.float32)
    m.drop = nn.Dropout(0.1)
    if kind == "ddp":
        wrapped = DistributedDataParallel(m)
    else:
        for block in m.blocks.values():
            fully_shard(block)
        wrapped = fully_shard(m)
    return wrapped.train(), torch.optim.AdamW(wrapped.parameters(), 1e-2)


def step_fn(wrapped, optimizer, batches, lens=None):
    losses = []
    for given in batches:
        loss = loss_of(nn.functional.dropout(wrapped(given["x"]), 0.1), given["x"]) * given["weight"]
        (loss / len(batches)).backward()
        losses.append(loss)
        if lens:
            lens.micro_step(loss)
    if lens:
        lens.grads_ready()
    nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return losses


def data(step, rank, bad_rank):
    weight = math.nan if step == BAD and rank == bad_rank else 1.0
    x = [torch.cat([batch(10 * step + i, rank), batch(10 * step + 5, rank)[:rank]]) for i in range(2)]  # a row more on rank 1
    return [{"x": rows, "weight": weight} for rows in x]


def train(rank, kind, folder, options=None, bad_rank=1):
    torch.manual_seed(rank)
    wrapped, optimizer = build(kind)
    lens = sl.attach(wrapped, optimizer, folder, blackbox=sl.BlackBox(**options)) if folder else None
    losses = []
    for step in range(1, STEPS + 1):
        several = []
        for given in data(step, rank, bad_rank):
            several.append(lens.batch(given, ids=[f"{rank}-{step}"]) if lens else given)
        losses.append([float(v.detach()) for v in step_fn(wrapped, optimizer, several, lens)])
        if lens:
            lens.step()
    if lens:
        assert not lens.guard.failures, lens.guard.failures
        lens.close()
    return losses


def again(rank, kind, folder):
    torch.manual_seed(7)
    return sl.replay(folder, *build(kind), step_fn).to_dict()


def both(rank, kind, folder, options):
    bare = train(rank, kind, None)
    dist.barrier()
    losses = train(rank, kind, folder, options)
    dist.barrier()
    found = again(rank, kind, folder)
    table = sl.counterfactuals(folder, *build(kind), step_fn, names=["skip_batch", "halve_lr", "clip_harder"], after=2)
    return bare, losses, found, table.to_dict()


def check_rows(samples, observed):
    """Two rows of rank 0 and three of rank 1 in each of two micro-batches; all of rank 1 are NaN."""
    places = [(row["rank"], row["micro_batch"], row["row"]) for row in samples["rows"]]
    assert places == [(rank, micro, at) for rank in (0, 1) for micro in (0, 1) for at in range(2 + rank)]
    assert [row["loss_sigma"] > 6 for row in samples["rows"]] == [rank == 1 for rank, _, _ in places]
    assert samples["rows"][4]["id"] == f"1-{BAD}"
    norms = [row["grad_norm"] for row in samples["rows"][:4]]
    assert all(n > 0 for n in norms) if observed else norms == [None] * 4
    assert "of rank 1 with loss nan" in samples["sentence"] and "of rank 0" not in samples["sentence"]


@pytest.mark.parametrize(("kind", "options"), [
    ("ddp", {"snapshot_every": 4}),
    ("fsdp2", {"snapshot_every": 4}),
    ("fsdp2", {"snapshot_every": 3, "snapshot": "disk"}),
])  # fmt: skip
def test_an_incident_of_one_process_is_dumped_by_all_and_replayed_to_the_bit(kind, options, tmp_path):
    results = on(2, both, kind, str(tmp_path), options)
    incidents = sorted(p.name for p in (tmp_path / INCIDENTS).iterdir())
    assert incidents == [f"step_{BAD}", f"step_{BAD}.counterfactuals.json", f"step_{BAD}.replay.json"]
    folder = tmp_path / INCIDENTS / incidents[0]
    for rank, (bare, losses, found, table) in enumerate(results):
        assert repr(bare) == repr(losses), "the black box changed the training"
        assert found["exact"], found["difference"]
        assert (found["step"], found["kinds"]) == (BAD, ("nonfinite",))
        mine = {s: losses[s - 1] for s in found["losses"]}
        assert all(found["losses"][s] == sum(v) / 2 or s == BAD for s, v in mine.items())
        assert Evidence(folder, rank).ids(BAD) == [[f"{rank}-{BAD}"]] * 2
        assert all(repr(found[key]) == repr(results[0][2][key]) for key in ("cause", "samples", "first_bad")), "the processes do not agree"
        assert (found["first_bad"]["what"], found["first_bad"]["rank"]) == ("nonfinite", 1)
        assert repr(table) == repr(results[0][3]), "the processes do not agree"
        assert {row["name"]: row["verdict"] for row in table["rows"]} == {
            "skip_batch": "averts", "halve_lr": "does not avert", "clip_harder": "does not avert",
        }  # fmt: skip
        assert found["cause"]["verdict"] == "data"
        check_rows(found["samples"], observed=kind == "ddp")
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {"manifest.json", "rank_0/steps.pt", "rank_1/steps.pt", "rank_0/snapshot.pt"} <= names
    shards = {n for n in names if n.endswith(".distcp")}
    assert len(shards) == (2 if kind == "fsdp2" else 0)
    assert ("rank_1/snapshot.pt" in names) == (kind == "fsdp2")
    if kind == "fsdp2":
        size = sum((folder / n).stat().st_size for n in names if n.endswith("snapshot.pt"))
        assert size < sum((folder / n).stat().st_size for n in shards), "weights are in a file of one process"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    on(2, train, "fsdp2", str(folder), {"snapshot_every": 4})
    return folder / INCIDENTS / f"step_{BAD}"


def test_another_number_of_processes_is_said(sharded):
    m = model(torch.float32)
    for function in (sl.replay, sl.counterfactuals):
        with pytest.raises(BadInput, match="was written by 2 process.es. together, and here are 1"):
            function(sharded, m, torch.optim.AdamW(m.parameters()), step_fn)


def whole_model(rank, folder):
    m = model(torch.float32)
    try:
        sl.replay(folder, m, torch.optim.AdamW(m.parameters()), step_fn)
    except BadInput as error:
        return str(error)


def test_a_model_that_is_not_sharded_is_said(sharded):
    assert all("shard the model as it was" in said for said in on(2, whole_model, str(sharded)))


def test_a_description_of_shards_that_would_run_something_is_refused(tmp_path):
    import os
    import pickle

    from stabilitylens.hooks.blackbox.sharded import check_description

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    for name, content in (("a", pickle.dumps(Evil())), ("b", b"cos\nmkdir\n(S'x'\ntR."), ("c", b"ctorch.distributed.checkpoint.filesystem\nos\n.")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match="can't be loaded as plain data"):
            check_description(tmp_path / name)
    assert not (tmp_path / "evil").exists()


def healthy(rank, folder):
    torch.manual_seed(rank)
    wrapped, optimizer = build("ddp")
    with sl.attach(wrapped, optimizer, folder, blackbox=True) as lens:
        for step in range(1, 31):
            lens.step(sum(step_fn(wrapped, optimizer, data(step if step != BAD else 99, rank, 1), lens)))
        return lens.guard.failures


def test_a_healthy_training_dumps_nothing(tmp_path):
    assert on(2, healthy, str(tmp_path)) == [{}, {}]
    assert not list((tmp_path / INCIDENTS).glob("*")) if (tmp_path / INCIDENTS).exists() else True
