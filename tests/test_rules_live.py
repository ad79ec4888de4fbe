"""Signatures that rules look for, made by real training steps rather than by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import stabilitylens as sl
from stabilitylens.findings import Finding

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from training import update  # noqa: E402


class Classifier(nn.Module):
    """Two blocks over tokens, with labels of which any may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens), mask=mask))


def train(
    model: nn.Module, logdir: Path, steps: range, *, unlabelled: int = -1, mask: torch.Tensor | None = None
) -> None:
    """Steps of AdamW on random tokens, from fresh moments; one of them without a label."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(steps.start)
    with sl.attach(model, optimizer, logdir, every=1, recipe={"precision": "fp32"}) as lens:
        if steps.start > 1:
            lens.load_state_dict({"step_number": steps.start})
        for step in steps:
            tokens = torch.randint(0, 20, (4, 6), generator=generator)
            labels = torch.full_like(tokens, -100) if step == unlabelled else tokens
            loss = nn.functional.cross_entropy(model(tokens, mask).flatten(0, 1), labels.flatten())
            update(loss, optimizer, lens)


def finding(logdir: Path, code: str) -> Finding:
    return next(f for f in sl.postmortem(logdir).findings if f.code == code)


def test_a_resume_without_its_moments_is_found(tmp_path: Path) -> None:
    model = Classifier()
    train(model, tmp_path, range(1, 25))
    assert finding(tmp_path, "SL306").verdict == "clear"
    train(model, tmp_path, range(25, 40))
    found = finding(tmp_path, "SL306")
    assert found.severity == "error" and found.where.steps == (25, 25) and "in 2 of 2 blocks at step 25" in found.message


@pytest.mark.filterwarnings("ignore:stabilitylens")
def test_a_batch_without_labels_is_no_divergence(tmp_path: Path) -> None:
    train(Classifier(), tmp_path, range(1, 31), unlabelled=17)
    found = finding(tmp_path, "SL402")
    assert found.verdict == "fired" and found.where.steps == (17, 17) and "the weights are unharmed" in found.message


@pytest.mark.filterwarnings("ignore:stabilitylens")
@pytest.mark.parametrize("blind", [True, False])
def test_rows_that_see_no_key_are_found(blind: bool, tmp_path: Path) -> None:
    mask = torch.full((6, 6), float("-inf")).triu(1)
    if blind:
        mask[3] = float("-inf")
    train(Classifier(), tmp_path, range(1, 12), mask=mask)
    assert finding(tmp_path, "SL204").verdict == ("fired" if blind else "clear")
