"""Launch of QK-Norm: queries and keys at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stabilitylens.kernels._gpu import shapes
from stabilitylens.kernels._gpu.norm import FORWARD_FIELDS, Forward, Mode, forward
from stabilitylens.kernels._gpu.norm_forward import pair_forward
from stabilitylens.kernels._gpu.norm_observed import pair_observed


def _side(name: str, x: Tensor, weight: Tensor, mode: Mode, statistics: bool) -> tuple[Forward, dict[str, Any], shapes.Tile, int]:
    """Room for the results, the kernel's arguments under a name, the tile, and tiles a program."""
    rows, d = x.shape
    tile = shapes.tile(d, "forward", False)
    tiles = -(-rows // tile.rows)
    steps = shapes.steps(x, tiles) if statistics else 1
    unit = x.stride(1) == 1
    align = shapes.alignment(x) if unit else 1
    out = Forward(
        torch.empty(x.shape, dtype=mode.dtype(x, weight), device=x.device), x.new_empty(0), x.new_empty(0),
        torch.empty(rows, dtype=torch.float32, device=x.device),
        torch.empty(-(-tiles // steps), FORWARD_FIELDS, dtype=torch.float32, device=x.device) if statistics else None,
    )  # fmt: skip
    low = name.lower()
    arguments = {
        name: x, f"W{name}": weight, f"Y{name}": out.y, f"RSTD_{name}": out.rstd, f"M{name}": rows,
        f"{low}_row": x.stride(0) // align, f"{low}_col": x.stride(1), f"D{name}": d, f"BLOCK_{name}": tile.block,
        f"ROWS_{name}": tile.rows, f"ALIGN_{name}": align, f"UNIT_{name}": unit,
    }  # fmt: skip
    if out.statistics is not None:
        arguments |= {f"STATS_{name}": out.statistics, f"{low}_steps": steps}
    return out, arguments, tile, -(-tiles // steps)


def pair(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, mode: Mode, statistics: bool
) -> tuple[Forward, Forward]:
    """RMSNorm of two matrices in one launch; in two where the rows of one don't fit into registers."""
    q_weight, k_weight = (shapes.vector(w, x.shape[1]) for x, w in ((q, q_weight), (k, k_weight)))
    if any(shapes.tile(x.shape[1], "forward", False).wide for x in (q, k)):
        return forward(q, None, q_weight, None, eps, mode, statistics), forward(k, None, k_weight, None, eps, mode, statistics)
    out_q, given_q, tile, programs_q = _side("Q", q, q_weight, mode, statistics)
    out_k, given_k, other, programs_k = _side("K", k, k_weight, mode, statistics)
    widest = max(tile, other, key=lambda t: t.warps)
    if programs_q + programs_k:
        given = given_q | given_k | {"eps": eps, "ROUNDING": mode.rounding} | widest.options
        if statistics:
            pair_observed[(programs_q + programs_k,)](**given, q_programs=programs_q, **shapes.threads(widest.warps))
        else:
            pair_forward[(programs_q + programs_k,)](**given, q_tiles=programs_q)
    return out_q, out_k
