"""A spike that is kept, replayed to the bit, and cured: python examples/09_black_box.py runs/spike"""

import sys

import torch
from torch import Tensor, nn

import stabilitylens as sl

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/spike"
BAD = 150


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer, for the training and for everything that is done with the incident."""
    layer = nn.TransformerEncoderLayer(32, 4, 128, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(64, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 64))
    return model, torch.optim.AdamW(model.parameters(), 3e-3)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[dict[str, Tensor]]) -> Tensor:
    """One whole step on a list of micro-batches: what the loop does, and what a replay does again."""
    for batch in batches:
        loss = nn.functional.cross_entropy(model(batch["words"]).flatten(0, 1), batch["targets"].flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def batch_of(number: int) -> dict[str, Tensor]:
    """Each word's successor is to be told; once some targets are noise."""
    words = torch.randint(0, 64, (16, 16))
    targets = (words + 1) % 64
    if number == BAD:
        targets[2:8] = torch.randint(0, 64, (6, 16))
    return {"words": words, "targets": targets}


torch.manual_seed(0)
model, optimizer = build()
with sl.attach(model, optimizer, folder, blackbox=sl.BlackBox(snapshot_every=10)) as lens:
    for number in range(1, BAD + 5):
        batch = lens.batch(batch_of(number), ids=[f"text {number}.{row}" for row in range(16)])
        lens.step(step(model, optimizer, [batch]))

model, optimizer = build()  # this could be another process, on another day
print(sl.replay(folder, model, optimizer, step))
print(sl.counterfactuals(folder, model, optimizer, step))
print(sl.postmortem(folder).suspects[0]["evidence_for"])
