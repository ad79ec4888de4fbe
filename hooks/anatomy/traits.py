"""What else is told of a model: gated feed-forwards, tokens as input, the precision of norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import nn

from stabilitylens.hooks.anatomy import ops
from stabilitylens.hooks.anatomy.branches import Branch
from stabilitylens.hooks.anatomy.flow import Flow, Part
from stabilitylens.hooks.anatomy.norms import Norm

_WORDS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
_HALF = ("bfloat16", "float16")


def gated(flow: Flow, branches: Sequence[Branch]) -> bool | None:
    """Whether half the feed-forward branches or more multiply two projections of their input, as SwiGLU does."""
    feeding = [branch for branch in branches if branch.kind in ("feed_forward", "parallel")]
    found = [any(_is_gate(flow, i) for i in branch.residual.region) for branch in feeding]
    return 2 * sum(found) >= len(found) if found else None


def _is_gate(flow: Flow, index: int) -> bool:
    """Two different projections, or two parts of one, multiplied element by element."""
    operands = flow.inputs(index)
    if flow.parts[index] is not Part.GATE or len(set(operands)) < 2:
        return False
    if flow.nodes[operands[0]].shape != flow.nodes[operands[1]].shape:
        return False
    one, other = (_way(flow, i) for i in operands[:2])
    if not all(flow.parts[way[-1]] is Part.LINEAR for way in (one, other)):
        return False
    return one[-1] != other[-1] or _apart(flow, one, other)


def _way(flow: Flow, index: int) -> list[int]:
    """The way up from an operand, through activations that are spelled out as x·σ(x)."""
    way = flow.spine(index)
    while flow.parts[way[-1]] is Part.GATE:
        one, other = (flow.spine(i) for i in flow.inputs(way[-1])[:2])
        if not set(one) & set(other) or _apart(flow, one, other):
            break
        way += one
    return way


def _apart(flow: Flow, one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two ways from one projection part where it is divided, not where an activation branches off."""
    meeting = next(i for i in one if i in other)
    steps = [way[way.index(meeting) - 1] for way in (one, other) if way.index(meeting)]
    divided = flow.nodes[meeting].op in ops.DIVISION
    return divided or (len(steps) == 2 and all(flow.nodes[i].op in ops.PART for i in steps))


def reads_tokens(flow: Flow) -> bool:
    """Whether a table of the model is read at the positions that an input of two dimensions or more gives."""
    return any(_reads_input(flow, node.index) for node in flow.nodes if node.op in ops.EMBEDDING and node.data)


def _reads_input(flow: Flow, lookup: int) -> bool:
    index = next(reversed(flow.inputs(lookup)), lookup)
    while len(flow.nodes[index].shape) > 1 and len(flow.inputs(index)) == 1 and flow.nodes[index].op != "input":
        if flow.parts[index] not in (Part.PASS, Part.SCALE, Part.UNARY, Part.JOIN):
            return False
        index = flow.inputs(index)[0]
    return flow.nodes[index].op == "input" and len(flow.nodes[index].shape) > 1


def norm_precision(flow: Flow, model: nn.Module, norms: Iterable[Norm]) -> str | None:
    """What most statistics are computed in; None for a model that is not in 16 bit, or has no statistics.

    PyTorch's own norms accumulate 16-bit input in float32.
    """
    weights = Counter(str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point())
    if not weights or weights.most_common(1)[0][0] not in _HALF:
        return None
    kinds = [n for n in norms if n.kind not in ("dyt", "derf")]
    used = Counter("float32" if n.statistic is None else flow.nodes[n.statistic].dtype for n in kinds)
    return _WORDS.get(used.most_common(1)[0][0]) if used else None
