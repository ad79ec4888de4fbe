"""From the rows that the taps left in the slots to a Sample that metrics can be computed from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.hooks.layers import parts_of
from stabilitylens.hooks.loose import Site
from stabilitylens.hooks.slots import ROW_TYPES
from stabilitylens.hooks.taps import OF_FUSED_NORMS
from stabilitylens.metrics import Sample

Rows = dict[str, dict[Hashable, np.ndarray]]


def site_name(site: Site) -> str:
    """A module's name, with the number of the call where a forward calls it more than once."""
    return site[0] if site[1] == 0 else f"{site[0]}#{site[1] + 1}"


@dataclass(frozen=True)
class Layout:
    """The order of everything that has an axis.

    Attributes:
        layers, attention, norms: sites in the order of a forward.
        parameters: names of the trainable parameters.
        layer_of, group_of: per parameter, its block and its module outside the blocks; -1 for none.
        groups: names of the modules outside the blocks that own parameters.
        n_branches: the most sub-layers that a block has.
    """

    layers: Sequence[Site]
    attention: Sequence[Site]
    parameters: Sequence[str]
    layer_of: Int[np.ndarray, " parameter"]
    group_of: Int[np.ndarray, " parameter"]
    groups: Sequence[str]
    n_branches: int = 0
    norms: Sequence[Site] = ()

    @classmethod
    def of(
        cls, parameters: Sequence[str], layers: Sequence[Site], attention: Sequence[Site], n_branches: int,
        norms: Sequence[Site] = (),
    ) -> Layout:
        """Assign parameters to the blocks whose names they begin with, and the others to the module that owns them."""
        index = {part: i for i, (name, call) in enumerate(layers) if call == 0 for part in parts_of(name)}
        layer_of = np.array([_block_of(p, index) for p in parameters], dtype=np.int64)
        owners = [p.rpartition(".")[0] or p for p in parameters]
        groups = list(dict.fromkeys(o for o, layer in zip(owners, layer_of, strict=True) if layer < 0))
        group_of = np.array(
            [groups.index(o) if layer < 0 else -1 for o, layer in zip(owners, layer_of, strict=True)], dtype=np.int64
        )
        return cls(layers, attention, parameters, layer_of, group_of, groups, n_branches, norms)

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Names of the entries of each axis, for the header."""
        return {
            "layer": tuple(map(site_name, self.layers)),
            "attention": tuple(map(site_name, self.attention)),
            "group": tuple(self.groups),
            "norm": tuple(map(site_name, self.norms)),
        }


def _block_of(parameter: str, index: dict[str, int]) -> int:
    """The innermost block that a parameter belongs to."""
    parts = parameter.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((index[p] for p in prefixes if p in index), index.get("", -1))


def _table(tap: str, shape: tuple[int, ...]) -> Float[np.ndarray, "*where field"]:
    """Rows that nothing was added to."""
    identity = ROW_TYPES[tap].identity()
    return np.broadcast_to(identity, (*shape, len(identity))).copy()


def _heads(tap: str, rows: dict[Hashable, np.ndarray], sites: Sequence[Site]) -> Float[np.ndarray, "attention head field"]:
    table = _table(tap, (len(sites), max((len(r) for r in rows.values()), default=0)))
    for i, site in enumerate(sites):
        if site in rows:
            table[i, : len(rows[site])] = rows[site]
    return table


def _branches(tap: str, rows: dict[Hashable, np.ndarray], layout: Layout) -> Float[np.ndarray, "layer branch field"]:
    table = _table(tap, (len(layout.layers), layout.n_branches))
    for i, site in enumerate(layout.layers):
        for b in range(layout.n_branches):
            if (site, b) in rows:
                table[i, b] = rows[site, b][0]
    return table


def assemble(rows: Rows, layout: Layout, learning_rates: dict[int, float], loss_scale: float = 1.0) -> Sample:
    """Arrange rows along their axes.

    Args:
        rows: by tap and key, each of shape (row, field).
        layout: the order of layers, attention calls and parameters.
        learning_rates: per parameter, for updates divided by it.
        loss_scale: what multiplied the gradients of the residual stream and of norms; divided out.
    """
    taps = {}
    for tap, entries in rows.items():
        if tap in ("attention", "key_value", "query_proj", "key_proj", "soft_cap"):
            table = _heads(tap, entries, layout.attention)
        elif tap in ("branch", "stream"):
            table = _branches(tap, entries, layout)
        elif tap in ("expert", "expert_grad"):
            table = _heads(tap, entries, layout.layers)
        elif tap in ("norm_gain", "dyt_alpha") or tap in OF_FUSED_NORMS:
            table = np.stack([entries[site][0] if site in entries else ROW_TYPES[tap].identity() for site in layout.norms])
        elif tap == "logits":
            table = entries["logits"][0]
        else:
            keys: Sequence[Hashable] = layout.layers if tap in ("resid", "resid_grad", "resid_4", "router") else range(len(layout.parameters))
            table = np.stack([entries[k][0] if k in entries else ROW_TYPES[tap].identity() for k in keys])
        if tap in ("resid_grad", "norm_input_grad", "norm_output_grad") and loss_scale != 1.0:
            table = table / np.array([1, loss_scale, loss_scale, loss_scale**2, loss_scale, 1])
        taps[tap] = ROW_TYPES[tap].from_rows(table)
        if tap == "update":
            rates = np.array([learning_rates.get(i) or np.nan for i in range(len(layout.parameters))])
            scaled = table / np.stack([np.ones_like(rates), rates, rates, rates**2, rates, np.ones_like(rates)], -1)
            taps["scaled_update"] = ROW_TYPES[tap].from_rows(scaled)
    return Sample(taps, layout.layer_of, layout.group_of, len(layout.layers), len(layout.groups))
