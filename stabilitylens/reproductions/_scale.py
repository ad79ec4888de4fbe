"""The same claim at another width."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Claim


def scaled(claim: Claim, width: int) -> Claim:
    """The claim with all its models widened by one factor, the widest to ``width``; heads stay as wide, and get more.

    Models of muP keep their number of heads. Expectations and budgets stay those of the small models.

    Raises:
        BadInput: the claim has no reference Transformer, or a width is no whole number of heads.
    """
    widths = [c.width for plan in (claim.quick, claim.full) for cell in plan.cells.values() for c in _models(cell)]
    if not widths:
        raise BadInput(f"{claim.name} trains no Transformer that could be widened; run it without --scale")
    plans = {}
    for mode in ("quick", "full"):
        plan = getattr(claim, mode)
        own = max(c.width for cell in plan.cells.values() for c in _models(cell))
        plans[mode] = dataclasses.replace(plan, cells={name: _widened(cell, width / own) for name, cell in plan.cells.items()})
    return dataclasses.replace(claim, **plans)


def _models(cell: Any) -> Iterator[Choices]:
    if isinstance(cell, Choices):
        yield cell
    for part in _parts(cell).values():
        yield from _models(part)


def _parts(cell: Any) -> dict[Any, Any]:
    """What a cell is made of: the fields of a dataclass, the members of a tuple."""
    if isinstance(cell, tuple):
        return dict(enumerate(cell))
    if dataclasses.is_dataclass(cell) and not isinstance(cell, Choices):
        return {field.name: getattr(cell, field.name) for field in dataclasses.fields(cell)}
    return {}


def _widened(cell: Any, factor: float) -> Any:
    if isinstance(cell, Choices):
        return _wider(cell, factor)
    parts = {key: _widened(part, factor) for key, part in _parts(cell).items()}
    if isinstance(cell, tuple):
        return tuple(parts.values())
    return dataclasses.replace(cell, **parts) if parts else cell


def _wider(choices: Choices, factor: float) -> Choices:
    more = 1 if choices.base_width else factor
    counts = {"width": choices.width * factor, "heads": choices.heads * more}
    if choices.kv_heads:
        counts["kv_heads"] = choices.kv_heads * more
    if any(count < 1 or count != int(count) for count in counts.values()):
        step = choices.width // choices.heads
        raise BadInput(f"a model of width {choices.width} can't be made {factor:g} times as wide; take a multiple of {step}")
    return dataclasses.replace(choices, **{name: int(count) for name, count in counts.items()})
