"""One line in the Trainer of Lightning: python examples/03_lightning.py runs/lightning"""

import sys

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

import stabilitylens as sl
from stabilitylens.hooks.trainers.lightning import LensCallback

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/lightning"


class Language(lightning.LightningModule):
    """Predicts bytes."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(256, 64), encoder, nn.Linear(64, 256))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        """Loss of a batch."""
        return nn.functional.cross_entropy(self.model(batch).flatten(0, 1), batch.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), 1e-3)


lightning.seed_everything(0)
trainer = lightning.Trainer(
    max_steps=12, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=folder,
    gradient_clip_val=1.0, callbacks=[LensCallback(folder, every=4)],
)  # fmt: skip
trainer.fit(Language(), DataLoader(torch.randint(0, 256, (128, 32)), batch_size=8))

print(sl.postmortem(folder).verdict)
