"""Constant and learned factors in the flow."""

from __future__ import annotations

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.flow import Flow
from stabilitylens.hooks.anatomy.graph import Node


def factor(flow: Flow, node: Node) -> float | None:
    """The one number that a node multiplies by; None where it is learned, an array, or not known."""
    numbers = [float(s) for s in node.scalars if isinstance(s, int | float) and not isinstance(s, bool)]
    numbers += [v for i in node.inputs if not flow.nodes[i].data and (v := _value(flow, i)) is not None]
    if len(numbers) != 1 or is_learned(flow, node):
        return None
    return 1 / numbers[0] if node.op == "div" and numbers[0] else numbers[0]


def is_learned(flow: Flow, node: Node) -> bool:
    """Whether a constant factor is made of parameters."""
    open_ = [i for i in node.inputs if not flow.nodes[i].data]
    while open_:
        constant = flow.nodes[open_.pop()]
        if constant.op == "param":
            return True
        open_ += constant.inputs
    return False


def _value(flow: Flow, index: int) -> float | None:
    node = flow.nodes[index]
    while node.op in ops.PASS and len(node.inputs) == 1:
        node = flow.nodes[node.inputs[0]]
    if node.value is None and node.op in ("full", "scalar_tensor"):
        numbers = [s for s in node.scalars if isinstance(s, int | float) and not isinstance(s, bool)]
        return float(numbers[-1]) if numbers else None
    return node.value
