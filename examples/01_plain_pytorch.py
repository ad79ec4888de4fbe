"""A training loop of your own, observed and explained: python examples/01_plain_pytorch.py runs/plain"""

import sys

import torch
from torch import nn

import stabilitylens as sl

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/plain"
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(256, 64), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95))

with sl.attach(model, optimizer, folder, every=5, recipe={"max_grad_norm": 1.0, "precision": "fp32"}) as lens:
    for _ in range(30):
        x = torch.randint(0, 256, (8, 32))
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        lens.grads_ready()  # between backward and clipping
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        lens.step(loss)  # once after each optimizer step

print(sl.postmortem(folder))
