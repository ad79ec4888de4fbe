"""One preallocated buffer on the device for the rows of every tap: one reduce, one copy to the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from stabilitylens.moments import (
    AdamMoments,
    AttentionMoments,
    CappedMoments,
    ExpertGradMoments,
    ExpertMoments,
    FourthMoments,
    GainMoments,
    KeyValueMoments,
    LogitMoments,
    Moments,
    NormMoments,
    RouterMoments,
    SlopeMoments,
    Statistics,
)

#: the row type of each tap
ROW_TYPES: dict[str, type[Statistics]] = {
    "resid": Moments, "resid_grad": Moments, "branch": Moments, "stream": Moments,
    "attention": AttentionMoments, "key_value": KeyValueMoments, "logits": LogitMoments,
    "param": Moments, "grad": Moments, "grad_clipped": Moments, "update": Moments, "adam": AdamMoments,
    "query_proj": NormMoments, "key_proj": NormMoments, "soft_cap": CappedMoments, "resid_4": FourthMoments,
    "norm_gain": GainMoments, "dyt_alpha": SlopeMoments,
    "norm_input": Moments, "norm_output": Moments, "norm_input_grad": Moments, "norm_output_grad": Moments,
    "router": RouterMoments, "expert": ExpertMoments, "expert_grad": ExpertGradMoments,
}  # fmt: skip


class Slots:
    """Rows of sufficient statistics, added to on the device and read once a sampled step.

    A slot is ``(tap, key)`` and holds as many rows as its first contribution has: one for most taps,
    one a head for attention. Slots are made on first use and keep their place for good.

    Args:
        device: where the buffer lives.
        capacity: float64 elements to preallocate; it doubles when full.
    """

    def __init__(self, device: torch.device, capacity: int = 1 << 14) -> None:
        self._data = torch.zeros(capacity, dtype=torch.float64, device=device)
        self._identity = torch.zeros_like(self._data)
        self._by_max = torch.zeros(capacity, dtype=torch.bool, device=device)
        self._used = 0
        self._place: dict[tuple[str, Hashable], tuple[int, int]] = {}

    def _grow(self) -> None:
        for name in ("_data", "_identity", "_by_max"):
            old = getattr(self, name)
            setattr(self, name, torch.cat((old, torch.zeros_like(old))))

    def _allocate(self, tap: str, key: Hashable, rows: int) -> tuple[int, int]:
        kind = ROW_TYPES[tap]
        size = rows * len(kind.names())
        while self._used + size > len(self._data):
            self._grow()
        start, self._used = self._used, self._used + size
        identity = torch.from_numpy(np.tile(kind.identity(), rows)).to(self._data.device)
        self._data[start : self._used] = identity
        self._identity[start : self._used] = identity
        self._by_max[start : self._used] = identity == -torch.inf
        self._place[tap, key] = place = (start, size)
        return place

    def add(self, tap: str, key: Hashable, rows: Tensor) -> None:
        """Combine rows into a slot; ``rows`` is float64 of shape (field,) or (row, field).

        Raises:
            ValueError: the slot holds another number of rows.
        """
        flat = rows.reshape(-1)
        start, size = self._place.get((tap, key)) or self._allocate(tap, key, flat.numel() // len(ROW_TYPES[tap].names()))
        if flat.numel() != size:
            raise ValueError(f"{tap} {key} changed its number of rows from one forward to the next")
        place = slice(start, start + size)
        kept = self._data[place]
        kept.copy_(torch.where(self._by_max[place], torch.maximum(kept, flat), kept + flat))

    def put(self, tap: str, key: Hashable, row: Tensor) -> None:
        """Set a slot to a row, or to rows, whatever was added to it before; see :meth:`add`."""
        flat = row.reshape(-1)
        start, size = self._place.get((tap, key)) or self._allocate(tap, key, flat.numel() // len(ROW_TYPES[tap].names()))
        self._data[start : start + size] = flat

    def put_each(self, tap: str, keys: Iterable[Hashable], rows: Tensor) -> None:
        """Set one slot a row; slots that were made together are set together."""
        wanted = list(keys)
        places = [self._place.get((tap, key)) or self._allocate(tap, key, 1) for key in wanted]
        if not places:
            return
        start, size = places[0]
        if all(place == (start + k * size, size) for k, place in enumerate(places)):
            self._data[start : start + size * len(places)] = rows.reshape(-1)
        else:
            for key, row in zip(wanted, rows, strict=True):
                self.put(tap, key, row)

    def read(self, more: Sequence[Tensor] = ()) -> tuple[dict[str, dict[Hashable, np.ndarray]], list[float]]:
        """Everything on the host, by one copy.

        Args:
            more: numbers on the device that travel with it.

        Returns:
            Every slot's rows by tap and key, in order of first use, each of shape (row, field); and the numbers.
        """
        numbers = [x.detach().to(self._data).reshape(1) for x in more]
        whole = torch.cat([*numbers, self._data[: self._used]]).cpu().numpy().copy()
        host = whole[len(numbers) :]
        taps: dict[str, dict[Hashable, np.ndarray]] = defaultdict(dict)
        for (tap, key), (start, size) in self._place.items():
            taps[tap][key] = host[start : start + size].reshape(-1, len(ROW_TYPES[tap].names()))
        return taps, whole[: len(numbers)].tolist()

    def clear(self) -> None:
        """Set every slot back to the identity."""
        self._data[: self._used].copy_(self._identity[: self._used])
