"""A metric and a rule of your own: python examples/07_custom_metric_and_rule.py runs/custom

In a package of yours the same two functions are found through entry points: see CONTRIBUTING.md.
"""

import sys

import numpy as np
import torch
from torch import nn

import stabilitylens as sl
from stabilitylens.metrics import metric
from stabilitylens.moments import Moments
from stabilitylens.rules import Evidence, Fired, rule

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/custom"


@metric(unit="1", axes="layer", needs="resid")
def resid_mean(resid: Moments) -> np.ndarray:
    r"""Mean of the residual stream after each block: $\sum x / n$."""
    return resid.sum / resid.count


@rule(code="MY101", needs=("resid_mean",), since="1.0")
def stream_off_centre(evidence: Evidence) -> list[Fired]:
    """The residual stream has a mean near zero.

    ## Remedy
    LayerNorm in place of RMSNorm.
    """
    largest = float(np.nanmax(np.abs(evidence.run["resid_mean"].values[-1])))
    if largest < 0.5:
        return []
    return [Fired("warning", f"the mean of the stream is {largest:.2f} in size", observed=largest, threshold=0.5)]


torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(256, 64), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 256))
nn.init.constant_(model[1].layers[-1].linear2.bias, 1.0)  # what the rule is to find
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
with sl.attach(model, optimizer, folder, every=5) as lens:
    for _ in range(10):
        x = torch.randint(0, 256, (8, 32))
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        lens.step(loss)

print(*(f"{f.code} {f.verdict}: {f.message}" for f in sl.postmortem(folder).findings if f.code == "MY101"), sep="\n")
