"""Measurements dealt over the ranks of a torchrun, and gathered."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

#: how long a rank that is done waits for the slowest
PATIENCE = timedelta(days=2)


@dataclass(frozen=True)
class Ranks:
    """This process among those of a torchrun; alone without one."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def here(cls) -> Ranks:
        """As torchrun has set the environment."""
        return cls(*(int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))))

    @property
    def group(self) -> str:
        """What the ranks of one torchrun have in common, and no other run at the same time has."""
        return ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))

    @property
    def device(self) -> torch.device:
        """A GPU of its own, where there are GPUs."""
        return torch.device("cuda", self.local) if torch.cuda.is_available() else torch.device("cpu")

    def mine(self, todo: list[int]) -> list[int]:
        """Every so many-th: with the longest first, all ranks get about as much.

        Deal what all ranks know alike, never what is left to do: one that starts later sees results of the others.
        """
        return todo[self.rank :: self.count]

    def gathered(self, found: dict[int, Any]) -> dict[int, Any]:
        """What all ranks found, on each of them.

        The ranks only meet here: a lens on a model sums over the ranks of a process group that it sees, and each
        measurement is one process's alone.
        """
        if self.count == 1:
            return found
        dist.init_process_group("gloo", timeout=PATIENCE)
        try:
            parts: list[dict[int, Any]] = [{} for _ in range(self.count)]
            dist.all_gather_object(parts, found)
        finally:
            dist.destroy_process_group()
        return {i: result for part in parts for i, result in part.items()}
