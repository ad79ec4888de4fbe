"""What the loop tells of a step, well or badly."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from stabilitylens.hooks.guard import Guard, LensWarning
from stabilitylens.hooks.loop_scalars import LoopScalars


@pytest.mark.parametrize("bad", ["abc", [1.0], object(), {"loss": 1.0}])
def test_a_loss_that_is_no_number_is_one_sentence(bad: Any) -> None:
    scalars = LoopScalars(Guard(), needs_loss=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [scalars.loss(bad, step) for step in (1, 2)] == [None, None]
    assert len(said) == 1
    assert "reading the loss failed" in str(said[0].message)


def test_micro_batches_make_the_mean_and_are_forgotten() -> None:
    scalars = LoopScalars(Guard(), needs_loss=True)
    scalars.note_loss(1.0)
    scalars.note_loss(torch.tensor(4.0))
    assert float(scalars.loss(None, 1) or 0) == 2.5
    with pytest.warns(LensWarning, match="was given no loss"):
        assert scalars.loss(None, 2) is None


def test_a_stage_without_a_loss_says_nothing() -> None:
    scalars = LoopScalars(Guard(), needs_loss=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scalars.loss(None, 1) is None
