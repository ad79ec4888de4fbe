"""What leaves the device in a step: nothing but one copy of the statistics, once a sampled step.

The meta device stands in for an accelerator: it takes the paths that are not the CPU's, and every value that has to come
from it passes a dispatch mode, which counts it and answers.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from training import update

import stabilitylens as sl

transformers = pytest.importorskip("transformers")


class Leaving(TorchDispatchMode):
    """Counts what goes from the meta device to the host: whole tensors, and single numbers with the line that asked."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[int, ...]] = []
        self.numbers: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        from_device = bool(args) and isinstance(args[0], Tensor) and args[0].device.type == "meta"
        if func is torch.ops.aten._local_scalar_dense.default and from_device:
            self.numbers.append(_asked_by())
            return 1
        if func is torch.ops.aten._to_copy.default and from_device and str(kwargs.get("device")) == "cpu":
            self.copies.append(tuple(args[0].shape))
            return torch.ones(args[0].shape, dtype=args[0].dtype)
        return func(*args, **kwargs)


def _asked_by() -> str:
    ours = [f for f in traceback.extract_stack() if "/hooks/" in f.filename or "/stabilitylens/" in f.filename]
    passed_on = not ours or ours[-1].name == "__torch_function__"  # the user's own call, which a mode only watches
    return "the training itself" if passed_on else f"{ours[-1].filename}:{ours[-1].lineno}"


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device the opaque operator does nothing: what it hides is run in its place."""

    def observe(function: Any, *tensors: Tensor) -> None:
        with torch.no_grad():
            function(*tensors)

    monkeypatch.setattr("stabilitylens.hooks.taps.observe", observe)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_copy_a_sampled_step_and_none_in_between(attention: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = llama()
        model.set_attn_implementation(attention)
        tokens = torch.zeros(2, 16, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, foreach=True)
    counted = []
    with sl.attach(model, optimizer, tmp_path, every=4) as lens:
        for _ in range(8):
            with Leaving() as leaving:
                update(model(input_ids=tokens, labels=tokens).loss, optimizer, lens)
            assert [place for place in leaving.numbers if place != "the training itself"] == []
            counted.append(len(leaving.copies))
        assert not lens.guard.failures
    assert counted == [1, 0, 0, 1, 0, 0, 0, 1]
