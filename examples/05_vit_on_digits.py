"""A small ViT on scikit-learn's digits, with QK-Norm and Peri-LN: python examples/05_vit_on_digits.py runs/vit"""

import sys
from pathlib import Path

import stabilitylens as sl
from stabilitylens.reproductions import Choices, Trial, train

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/vit")
choices = Choices(kind="vit", depth=2, width=32, context=16, pixels=4, vocabulary=10, placement="peri", qk_norm=True)
_, run = train(Trial(choices, task="digits", steps=150, lr=3e-3, batch=64), seed=0, folder=folder)

print(f"loss {run['loss'].values[0]:.2f} -> {run['loss'].values[-10:].mean():.2f}")
print(f"largest attention logit {run['max_attn_logit'].values.max():.1f}")
print(sl.postmortem(run).verdict)
