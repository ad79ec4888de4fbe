"""What each process contributes, from descriptions alone; and parameters that nothing can be said of."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from training import update

import stabilitylens as sl
from stabilitylens.hooks import per_rank, ring
from stabilitylens.hooks.descriptions import Description, Held
from stabilitylens.hooks.meeting import Meeting
from stabilitylens.hooks.merging import merge
from stabilitylens.hooks.packing import Packing
from stabilitylens.hooks.peers import Peers, card
from stabilitylens.hooks.slots import ROW_TYPES
from stabilitylens.hooks.stages import ordered


def described(rank, *, blocks=("blocks.0",), stream=1.0, heads=1.0, weight=1.0, data=(), stage=None, outside=True, group=None, part=()):
    names = [f"{b}.weight" for b in blocks] + (["head.weight"] if outside else [])
    slots = {("resid", (b, 0)): (1.0, stream) for b in blocks} | {("attention", (f"{b}.attn", 0)): (2.0, heads) for b in blocks}
    return Description(
        rank=rank, data=data, stage=stage, blocks=blocks,
        parameters={n: Held(group or (rank,), part, 6, (weight,)) for n in names},
        slots=slots | {("param", n): (weight,) for n in names},
        rows={e: 2 if e[0] == "attention" else 1 for e in slots} | {("param", n): 1 for n in names},
        layers=tuple((b, 0) for b in blocks), attention=tuple((f"{b}.attn", 0) for b in blocks),
    )  # fmt: skip


def test_copies_are_counted_once_and_their_data_by_all():
    plan = merge([described(r, stream=r, data=(0, 1, 2)) for r in range(3)])
    assert plan.owners == {"blocks.0.weight": [0], "head.weight": [0]}
    assert plan.contributors["resid", ("blocks.0", 0)] == 3 and plan.twins == ((0, 1, 2),)
    assert plan.sizes["head.weight"] == 6 and not plan.unclear


def test_shards_are_counted_by_everybody():
    plan = merge([described(r, group=(0, 1), part=(r,), weight=r, stream=r, data=(0, 1)) for r in (0, 1)])
    assert plan.owners["head.weight"] == [0, 1] and plan.sizes["head.weight"] == 12 and not plan.twins


def test_tensor_parallel_ranks_have_heads_of_their_own_and_one_stream():
    plan = merge([described(r, group=(0, 1), part=(r,), weight=r, heads=r) for r in (0, 1)])
    assert plan.entries["attention", ("blocks.0.attn", 0)] == 4
    assert plan.offsets[1]["attention", ("blocks.0.attn", 0)][1] == 2
    assert plan.contributors["resid", ("blocks.0", 0)] == 1


def test_parts_of_plain_tensors_are_not_taken_for_copies():
    """As in hand-written tensor parallelism: one stream, other values under the same names."""
    plan = merge([described(r, weight=r, heads=r) for r in (0, 1)])
    assert plan.blocks == ("blocks.0",) and set(plan.unclear) == {"blocks.0.weight", "head.weight"}
    assert plan.entries["attention", ("blocks.0.attn", 0)] == 4


@pytest.mark.parametrize("stages", [(None, None, None), (0, 1, 2), (2, 1, 0)])
def test_stages_that_number_their_layers_from_0(stages):
    given = [described(r, blocks=("blocks.0", "blocks.1"), stream=r, weight=r, stage=s, outside=False) for r, s in enumerate(stages)]
    plan = merge(given)
    assert plan.blocks == tuple(f"blocks.{i}" for i in range(6))
    place = stages[1] if stages[1] is not None else 1
    assert plan.names[1]["blocks.1.weight"] == f"blocks.{2 * place + 1}.weight"
    assert not plan.unclear


def test_sites_come_in_the_order_of_a_forward():
    names = [[("encoder.1", 0), ("encoder.10", 0), ("decoder.0", 0)], [("encoder.2", 0), ("decoder.1", 0)]]
    assert [n for n, _ in ordered(names)] == ["encoder.1", "encoder.2", "encoder.10", "decoder.0", "decoder.1"]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=6), min_size=2, max_size=5))
def test_packing_adds_up_and_takes_maxima(values):
    ranks = tuple(range(len(values)))
    plan = merge([described(r, stream=r, data=ranks) for r in ranks])
    key = ("blocks.0", 0)
    buffers = [Packing(plan, r).pack({"resid": {key: np.array([row])}}, {"head.weight": 0.1}, {}) for r, row in zip(ranks, values, strict=True)]
    sums, maxima = np.sum([b[0] for b in buffers], 0), np.max([b[1] for b in buffers], 0)
    rows, rates = Packing(plan, 0).unpack(sums, maxima, complete=True)
    maximum = [name in ROW_TYPES["resid"].BY_MAX for name in ROW_TYPES["resid"].names()]
    expected = np.where(maximum, np.max(values, 0), np.sum(values, 0))
    np.testing.assert_allclose(rows["resid"][key][0], expected, rtol=1e-12, atol=1e-6)
    assert rates == {list(plan.sizes).index("head.weight"): 0.1}


def test_a_parameter_of_which_a_part_is_missing_is_not_observed():
    plan = merge([described(r, group=(0, 1), part=(r,), weight=r, stream=r, data=(0, 1)) for r in (0, 1)])
    row = np.array([[6.0, 0, 0, 3.0, 1.0, 0]])
    sums, maxima = Packing(plan, 0).pack({"param": {"head.weight": row}}, {}, {})
    rows, _ = Packing(plan, 0).unpack(sums, maxima, complete=True)
    assert np.isnan(rows["param"][list(plan.sizes).index("head.weight")][0, 3])


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=ring.RING))
def test_scalars_of_the_steps_that_waited(losses):
    own = [(i, {"loss": loss, "grad_norm": loss, "lr": 0.5}) for i, loss in enumerate(losses)]
    whole = ring.unpack(ring.pack(own) + ring.pack(own), own, owners=2)
    assert [w["loss"] for _, w in whole] == pytest.approx(losses)
    assert [w["grad_norm"] for _, w in whole] == pytest.approx([2**0.5 * loss for loss in losses])
    alone = ring.unpack(ring.pack(own), own, owners=2)
    assert all(np.isnan(w["grad_norm"]) and w["lr"] == 0.5 for _, w in alone), "a part of a norm is no norm"


def test_an_outlier_is_said_once_while_it_lasts():
    watch = per_rank.Watch((0, 1, 2, 3))
    table = sum(per_rank.columns(per_rank.Seen(step=1, loss=50.0 if r == 2 else 1.0 + r / 10), r, 4) for r in range(4))
    assert [kind for kind, _ in watch.events(table, [])] == ["rank_outlier"]
    assert not list(watch.events(table, []))


def test_only_the_first_loss_that_is_not_finite_is_called_the_first():
    watch = per_rank.Watch((0, 1))

    def said(step, bad):
        table = sum(per_rank.columns(per_rank.Seen(step=step, bad_loss=step if r in bad else 0.0), r, 2) for r in range(2))
        return [text for _, text in watch.events(table, [])]

    assert said(4, {1}) == ["rank 1 had the first loss that is not finite, at step 4"]
    assert said(5, {0, 1}) == ["ranks 0 and 1 had a loss that is not finite, at step 5; the first was at step 4, of rank 1"]
    assert said(6, {0, 1}) == [] and said(7, set()) == []
    assert said(8, {1}) == ["rank 1 had a loss that is not finite, at step 8; the first was at step 4, of rank 1"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell of other processes")
def test_nobody_waits_for_a_rank_of_the_same_machine_that_has_ended():
    store = torch.distributed.HashStore()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = Peers(store, 0)
    store.set("process/1", json.dumps(card(other.pid)))
    assert mine.ended((0, 1)) == []
    other.kill()
    while mine.ended((0, 1)) != [1]:  # a process that nobody has waited for yet has ended too
        pass
    outcome = Meeting(store, (0, 1), 0, 1e6, mine.ended).hold(flag=False, sample=True)
    other.communicate()
    assert (outcome.came, outcome.left, outcome.why) == (False, True, "rank 1 has ended")


def test_of_a_rank_on_another_machine_it_is_not_known_whether_it_has_ended():
    store = torch.distributed.HashStore()
    mine = Peers(store, 0)
    store.set("process/1", json.dumps(["another start", "another space", "1", "1"]))
    assert mine.ended((0, 1, 2)) == []


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x)))


def trained(model, folder, steps=2):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, folder, every=1) as lens:
        for _ in range(steps):
            update(model(torch.randint(0, 8, (2, 5))).square().mean(), optimizer, lens)
    assert not lens.guard.failures
    return sl.load(folder)


def marks_of_zero3(parameter):
    parameter.ds_id = 0


def marks_of_zero1(parameter):
    parameter._hp_mapping = object()


@pytest.mark.parametrize("mark", [marks_of_zero3, marks_of_zero1])
def test_deepspeed_is_not_available_and_never_zero(mark, tmp_path):
    model = Tiny()
    for parameter in model.parameters():
        mark(parameter)
    recorded = trained(model, tmp_path)
    for name in ("grad_norm", "param_norm", "update_ratio", "adam_rms"):
        assert name not in recorded and "DeepSpeed" in recorded.why_missing(name)
    assert np.isfinite(recorded["resid_rms"].values).all()


def replica_of(module):
    """As torch makes it: every module copied, parameters plain tensors."""
    copies = {m: m._replicate_for_data_parallel() for m in module.modules()}
    for original, copy in copies.items():
        for name, child in original._modules.items():
            copy._modules[name] = copies[child]
        for name, parameter in original._parameters.items():
            setattr(copy, name, None if parameter is None else parameter.view_as(parameter))
    return copies[module]


def test_replicas_in_threads_are_not_counted(tmp_path):
    """As ``nn.DataParallel`` runs them: copies of the modules, several at a time."""
    torch.manual_seed(0)
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    x = torch.randint(0, 8, (2, 5))
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        for _ in range(2):
            threads = [threading.Thread(target=replica_of(model), args=(x,)) for _ in range(3)]
            for t in threads:
                t.start()
            loss = model(x).square().mean()
            for t in threads:
                t.join()
            update(loss, optimizer, lens, ready=False)
    assert not lens.guard.failures
    values = sl.load(tmp_path)["resid_rms"].values
    np.testing.assert_allclose(values[0], values[1])
    once = sl.attach(model, optimizer, tmp_path / "once", every=1)
    once.step(model(x).square().mean())
    once.close()
    np.testing.assert_allclose(sl.load(tmp_path / "once")["resid_rms"].values[0], values[0])


def test_one_process_needs_nothing_distributed(tmp_path, monkeypatch):
    import sys

    from stabilitylens.hooks.distributed import distributed

    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert distributed() is None
    assert "torch.distributed" not in sys.modules
