"""The packed collectives: on the host, over a group of gloo's own that pairs with nothing of the training's."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from jaxtyping import Float


class Collectives:
    """Reductions over the processes that observe together.

    What is reduced has been copied to the host already, so that no device waits, and the group is neither the
    training's nor known to it: an operation of ours can never meet one of the training's.

    Args:
        store: a key-value store that the processes share.
        index, size: which of how many this process is.
        patience: seconds until a collective that does not end is given up.

    Raises:
        RuntimeError: the processes can't connect.
    """

    def __init__(self, store: Any, index: int, size: int, patience: float) -> None:
        dist = sys.modules["torch.distributed"]
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), index, size, timedelta(seconds=patience))
        self._size, self._ops = size, dist.ReduceOp

    def reduce(
        self, sums: Float[np.ndarray, " entry"], maxima: Float[np.ndarray, " entry"]
    ) -> tuple[Float[np.ndarray, " entry"], Float[np.ndarray, " entry"]]:
        """Both packed buffers reduced over all processes: two collectives whatever is in them.

        Raises:
            RuntimeError: a process did not take part.
        """
        both = torch.from_numpy(sums), torch.from_numpy(maxima)
        work = [
            self._group.allreduce(buffer, op)
            for buffer, op in zip(both, (self._ops.SUM, self._ops.MAX), strict=True)
            if buffer.numel()
        ]
        for w in work:
            w.wait()
        return sums, maxima

    def gather(self, own: bytes) -> list[bytes]:
        """What each process gives, in their order; done when what there is to reduce has changed.

        Raises:
            RuntimeError: a process did not take part.
        """
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        self._group.allgather([sizes], [torch.tensor([len(own)])]).wait()
        longest = max(int(s) for s in sizes)
        given = torch.zeros(longest, dtype=torch.uint8)
        given[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        parts = [torch.zeros_like(given) for _ in range(self._size)]
        self._group.allgather([parts], [given]).wait()
        return [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]
