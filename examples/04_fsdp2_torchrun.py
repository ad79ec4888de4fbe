"""FSDP2 over several processes: torchrun --nproc-per-node 2 examples/04_fsdp2_torchrun.py runs/fsdp2"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import stabilitylens as sl

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/fsdp2"
dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(256, 64), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(64, 256))
model.to(device)
for block in model[1].layers:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

torch.manual_seed(dist.get_rank())  # each process has data of its own
with sl.attach(model, optimizer, folder, every=5) as lens:
    for _ in range(20):
        x = torch.randint(0, 256, (8, 32), device=device)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        lens.grads_ready()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        lens.step(loss)

if dist.get_rank() == 0:
    print(sl.load(folder).header.coverage)
dist.destroy_process_group()
