"""Find attention calls in the flow: fused ones, softmax over a product of two activations, and the softmax-free kind."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from stabilitylens.hooks.anatomy.flow import Flow, Part
from stabilitylens.hooks.anatomy.graph import Node

_SCORE_LIMIT = 60  # nodes looked through between scores and softmax
_VALUE_LIMIT = 40  # nodes looked through between softmax and values
_ABOVE_SCORES = frozenset({Part.PRODUCT, Part.LINEAR, Part.ATTENTION, Part.MIXING, Part.SOFTMAX})
_BELOW_SOFTMAX = frozenset({Part.PASS, Part.SCALE, Part.JOIN, Part.UNARY, Part.GATE, Part.ADD, Part.NORM, Part.OTHER})
_BELOW_SCORES = _BELOW_SOFTMAX | {Part.ACTIVATION, Part.SOFTMAX, Part.REDUCE}
_NONLINEAR = frozenset({Part.ACTIVATION, Part.UNARY, Part.SOFTMAX})


@dataclass(frozen=True)
class Call:
    """An attention call in the graph.

    Attributes:
        node: the softmax, the fused operation, or the product with the values where there is no softmax.
        scores: the product of queries and keys; the same as ``node`` where fused.
        query, key: its operands.
        cap: the tanh of a soft-cap between scores and softmax.
        products: all products that the softmax is over, where there are several side by side.
    """

    node: int
    scores: int
    query: int
    key: int
    cap: int | None = None
    products: tuple[int, ...] = ()


def find_calls(flow: Flow) -> list[Call]:
    """Return the attention calls of a forward in order of execution."""
    calls = [call for node in flow.nodes if node.data and (call := _call_at(flow, node))]
    used = {i for call in calls for i in (call.scores, *call.products)}
    calls += [call for node in flow.nodes if node.index not in used and (call := _without_softmax(flow, node))]
    return sorted(calls, key=lambda call: call.node)


def _call_at(flow: Flow, node: Node) -> Call | None:
    part = flow.parts[node.index]
    if part is Part.ATTENTION:
        operands = flow.inputs(node.index)
        return Call(node.index, node.index, operands[0], operands[1]) if len(operands) > 1 else None
    return _softmax_call(flow, node) if part is Part.SOFTMAX else None


def _softmax_call(flow: Flow, node: Node) -> Call | None:
    above = _above(flow, node)
    products = tuple(i for i in above if flow.parts[i] is Part.PRODUCT)
    scores = next(iter(products), None)
    if scores is None or not _meets_values(flow, node.index):
        return None
    caps = [i for i in above if flow.nodes[i].op == "tanh" and scores in flow.ancestors(i, scores)]
    query, key = _operands(flow, scores)
    return Call(node.index, scores, query, key, caps[-1] if caps else None, products)


def _above(flow: Flow, softmax: Node) -> list[int]:
    """What the scores are made from, up to products; a map that mixes heads is looked through."""
    above = [i for start in flow.inputs(softmax.index) for i in flow.upstream(start, _ABOVE_SCORES, _SCORE_LIMIT)]
    mixing = [i for i in above if _mixes_heads(flow, i, softmax)]
    return above + [i for m in mixing for j in flow.inputs(m) for i in flow.upstream(j, _ABOVE_SCORES, _SCORE_LIMIT)]


def _mixes_heads(flow: Flow, index: int, softmax: Node) -> bool:
    """Whether it is a learned map from heads to heads (talking heads, re-attention)."""
    if flow.parts[index] is not Part.LINEAR or len(softmax.shape) != 4:
        return False
    weights = (flow.nodes[i] for i in flow.nodes[index].inputs if not flow.nodes[i].data)
    sizes = [[n for n in weight.shape if n > 1] for weight in weights]
    return [softmax.shape[1]] * 2 in sizes


def _operands(flow: Flow, scores: int) -> tuple[int, int]:
    operands = flow.inputs(scores)
    if flow.nodes[scores].op in ("baddbmm", "addbmm") and len(operands) > 2:
        operands = operands[1:]
    return operands[0], operands[1]


def _meets_values(flow: Flow, softmax: int) -> bool:
    seen, queue = {softmax}, deque([softmax])
    while queue:
        i = queue.popleft()
        for user in flow.data_users(i):
            if flow.parts[user] is Part.PRODUCT:
                return True
            onward = flow.parts[user] in _BELOW_SOFTMAX or _mixes_heads(flow, user, flow.nodes[softmax])
            if user not in seen and len(seen) < _VALUE_LIMIT and onward:
                seen.add(user)
                queue.append(user)
    return False


def _without_softmax(flow: Flow, node: Node) -> Call | None:
    """Product, nonlinearity, product: attention with another kernel than the softmax."""
    if flow.parts[node.index] is not Part.PRODUCT or len(node.shape) < 3 or len(flow.inputs(node.index)) < 2:
        return None
    second = _second_product(flow, node)
    query, key = _operands(flow, node.index)
    if second is None or any(_comes_from_scores(flow, i) for i in (query, key)):
        return None
    return Call(second, node.index, query, key)


def _second_product(flow: Flow, scores: Node) -> int | None:
    """The product that the scores, same shape and changed by a nonlinearity, are the first operand of."""
    seen, queue, nonlinear = {scores.index}, deque([scores.index]), False
    while queue:
        i = queue.popleft()
        for user in flow.data_users(i):
            if user in seen or len(seen) >= _SCORE_LIMIT:
                continue
            if flow.parts[user] is Part.PRODUCT:
                first = flow.inputs(user)[0]
                if nonlinear and first in seen and flow.nodes[first].shape[-2:] == scores.shape[-2:]:
                    return user
                continue
            seen.add(user)
            nonlinear |= flow.parts[user] in _NONLINEAR
            if flow.parts[user] in _BELOW_SCORES:
                queue.append(user)
    return None


def _comes_from_scores(flow: Flow, operand: int) -> bool:
    above = flow.upstream(operand, _ABOVE_SCORES, 80)
    return any(flow.parts[i] is Part.PRODUCT for i in above)
