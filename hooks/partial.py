"""Gradients that are sums yet to be taken over processes, as sequence parallelism leaves those of norms.

No statistic of a part says anything of the sum. They are small, so their values themselves travel with the
packed sums, and their rows are made of what arrives.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from stabilitylens.kernels import moments

#: values by tap and parameter; under ``moment`` Adam's corrected second moment, with epsilon behind it
Values = dict[str, dict[Hashable, np.ndarray]]


class PartialGradients:
    """Keeps this process's parts until the sample is taken."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Tensor] = {}

    def note(self, tap: str, i: int, part: Tensor, scale: Tensor | float | None) -> None:
        """Keep the part of a gradient; ``scale`` is divided out."""
        values = part.detach().double().reshape(-1)
        self._kept[tap, i] = values.clone() if scale is None else values / scale

    def note_moment(self, i: int, moment: Tensor, step: Tensor | float, beta2: float, eps: float) -> None:
        """Keep Adam's second moment, whole on every process."""
        corrected = moment.detach().double().reshape(-1) / (1 - beta2**step)
        self._kept["moment", i] = torch.cat((corrected, corrected.new_tensor([float(eps)])))

    def take(self) -> Values:
        """What was kept, on the host, and forget it."""
        kept, self._kept = self._kept, {}
        if not kept:
            return {}
        flat = torch.cat(list(kept.values())).cpu().numpy()
        out: Values = {}
        for (tap, i), values in zip(kept, np.split(flat, np.cumsum([len(v) for v in kept.values()])[:-1]), strict=True):
            out.setdefault(tap, {})[i] = values
        return out


def rows_of(values: Mapping[tuple[str, str], np.ndarray], names: Iterable[str]) -> dict[str, dict[str, np.ndarray]]:
    """Rows of the taps ``grad``, ``grad_clipped`` and ``adam`` from whole gradients and moments, each (1, field)."""
    rows: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        for tap in ("grad", "grad_clipped"):
            if (tap, name) in values:
                rows.setdefault(tap, {})[name] = moments(torch.from_numpy(values[tap, name])).numpy()[None]
        gradient, moment = values.get(("grad_clipped", name)), values.get(("moment", name))
        if gradient is not None and moment is not None:
            corrected, floor = moment[:-1], moment[-1] ** 2
            row = [len(gradient), (gradient**2 / np.maximum(corrected, floor)).sum(), (corrected < floor).sum()]
            rows.setdefault("adam", {})[name] = np.array([row], dtype=np.float64)
    return rows
