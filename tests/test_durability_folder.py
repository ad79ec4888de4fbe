"""The run's folder is deleted, moved or made unwritable while the training goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from loops import Blind, left_behind, same
from training import Decoder, loss_of, tokens

import stabilitylens as sl
from stabilitylens.hooks import record
from stabilitylens.hooks.guard import LensWarning

Act = Callable[[Path], object]
STEPS, AFTER = 8, 4


@pytest.fixture(autouse=True)
def _look_at_every_step(monkeypatch):
    monkeypatch.setattr(record, "LOOK", 0.0)


def loop_with(act: Act | None, logdir: Path, every: int = 2):
    """Something happens to the folder between two steps."""

    def loop(attach):
        model = Decoder(depth=2)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        lens, losses = attach(model, optimizer, logdir, every=every), []
        for i in range(1, STEPS + 1):
            loss = loss_of(model, tokens())
            loss.backward()
            lens.grads_ready()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
            losses.append(loss.detach())
            if i == AFTER and act is not None:
                act(logdir)
        lens.close()
        return model, losses

    return loop


def trained(act: Act, logdir: Path) -> None:
    """The training is what it is without a lens."""
    bare = left_behind(loop_with(None, logdir), lambda *_a, **_k: Blind())
    assert same(bare, left_behind(loop_with(act, logdir), sl.attach))


def delete(logdir: Path) -> None:
    shutil.rmtree(logdir)


def delete_the_record(logdir: Path) -> None:
    shutil.rmtree(logdir / "stabilitylens")


def delete_the_arrays(logdir: Path) -> None:
    (logdir / "stabilitylens" / "arrays.0.sl").unlink()


def delete_and_put_others_there(logdir: Path) -> None:
    """As a second training does that is given the same folder after it was cleared."""
    (folder := logdir / "stabilitylens").rename(kept := logdir / "kept")
    folder.mkdir()
    for file in kept.iterdir():
        shutil.copy(file, folder)
    shutil.rmtree(kept)


@pytest.mark.parametrize("act", [delete, delete_the_record])
def test_a_deleted_folder_is_said_once_and_what_follows_is_readable(act, tmp_path):
    logdir = tmp_path / "run"
    with pytest.warns(LensWarning, match="deleted or moved") as said:
        trained(act, logdir)
    assert len([w for w in said if "deleted" in str(w.message)]) == 1
    run = sl.load(logdir)
    assert run["loss"].steps.tolist() == list(range(AFTER + 1, STEPS + 1))
    assert run["resid_rms"].steps.tolist() == [6, 8]
    assert run.header.metrics and run.header.recipe.optimizer == "AdamW" and run.header.labels["layer"]
    assert [(e.step, e.kind) for e in run.events] == [(AFTER + 1, "record_gone")]
    assert sl.postmortem(logdir).coverage


@pytest.mark.parametrize("act", [delete_the_arrays, delete_and_put_others_there])
def test_what_is_still_there_of_the_record_is_kept(act, tmp_path):
    logdir = tmp_path / "run"
    with pytest.warns(LensWarning, match="deleted or moved"):
        trained(act, logdir)
    run = sl.load(logdir)
    assert run["loss"].steps.tolist() == list(range(1, STEPS + 1))
    assert run["resid_rms"].steps.tolist()[-2:] == [6, 8]
    assert not run.superseded


def test_a_moved_folder_is_whole_up_to_there_and_the_rest_is_where_it_should_be(tmp_path):
    logdir, kept = tmp_path / "run", tmp_path / "kept"
    with pytest.warns(LensWarning, match="deleted or moved"):
        trained(lambda folder: folder.rename(kept), logdir)
    assert sl.load(kept)["loss"].steps.tolist() == list(range(1, AFTER + 1))
    assert sl.load(logdir)["loss"].steps.tolist() == list(range(AFTER + 1, STEPS + 1))


def test_a_folder_that_cannot_be_made_again_is_said_once_and_training_goes_on(tmp_path):
    logdir = tmp_path / "run"

    def a_file_in_its_place(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.write_text("in the way")

    with pytest.warns(LensWarning) as said:
        trained(a_file_in_its_place, logdir)
    sentences = [str(w.message) for w in said]
    assert len([s for s in sentences if "cannot record in" in s]) == 1, sentences


def test_a_folder_that_is_there_again_later_is_recorded_in_again(tmp_path):
    logdir = tmp_path / "run"
    lens = sl.attach(model := Decoder(depth=1), torch.optim.SGD(model.parameters(), 0.1), logdir, every=1)
    lens.step(1.0)
    shutil.rmtree(logdir)
    logdir.write_text("in the way")
    with pytest.warns(LensWarning):
        lens.step(2.0)
    logdir.unlink()
    lens.step(3.0)
    lens.close()
    assert sl.load(logdir)["loss"].values.tolist() == [3.0]


def test_a_process_that_changes_its_directory_still_finds_its_record(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    lens = sl.attach(model := Decoder(depth=1), torch.optim.SGD(model.parameters(), 0.1), "run", every=1)
    lens.step(1.0)
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    lens.load_state_dict(lens.state_dict())  # opens new files
    lens.step(2.0)
    lens.close()
    assert not [w for w in recwarn if "deleted" in str(w.message)]
    assert sl.load(tmp_path / "run")["loss"].values.tolist() == [1.0, 2.0]
