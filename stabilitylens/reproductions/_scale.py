"""The same claim at another width."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Claim, Mode, Plan


def scaled(claim: Claim, mode: Mode, width: int) -> Claim:
    """The claim with all models of one of its plans widened by one factor, the widest to ``width``; heads stay as wide, and get more.

    Models of muP keep their number of heads. Expectations and budgets stay those of the small models.

    Raises:
        BadInput: the claim has no reference Transformer, or a width is no whole number of heads.
    """
    if width < 1:
        raise BadInput(f"no model can be {width} wide; give --scale a positive width")
    if not has_width(claim):
        raise BadInput(f"{claim.name} trains no Transformer that could be widened; run it without --scale")
    plan = claim.plan(mode)
    wide = _wide(plan, width)
    if wide is None:
        step = next(step for step in range(1, _widest(plan) + 1) if _wide(plan, step) is not None)
        raise BadInput(f"{claim.name} can't be made {width} wide with whole heads in all its models; take a multiple of {step}, or leave it out")
    return dataclasses.replace(claim, quick=wide) if mode == "quick" else dataclasses.replace(claim, full=wide)


def _widest(plan: Plan) -> int:
    return max(choices.width for cell in plan.cells.values() for choices in _models(cell))


def _wide(plan: Plan, width: int) -> Plan | None:
    """None where a width or a number of heads would not be whole."""
    factor = Fraction(width, _widest(plan))
    try:
        return dataclasses.replace(plan, cells={name: _widened(cell, factor) for name, cell in plan.cells.items()})
    except (ArithmeticError, BadInput):
        return None


def has_width(claim: Claim) -> bool:
    """Whether there is anything to widen."""
    return any(True for cell in claim.quick.cells.values() for _ in _models(cell))


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


def _widened(cell: Any, factor: Fraction) -> Any:
    if isinstance(cell, Choices):
        return _wider(cell, factor)
    parts = {key: _widened(part, factor) for key, part in _parts(cell).items()}
    if isinstance(cell, tuple):
        return tuple(parts.values())
    return dataclasses.replace(cell, **parts) if parts else cell


def _wider(choices: Choices, factor: Fraction) -> Choices:
    more = Fraction(1) if choices.base_width else factor
    width, heads, kv_heads = (_whole(n) for n in (choices.width * factor, choices.heads * more, (choices.kv_heads or 0) * more))
    return dataclasses.replace(choices, width=width, heads=heads, kv_heads=kv_heads or None)


def _whole(count: Fraction) -> int:
    if count.denominator > 1:
        raise ArithmeticError(f"{count} is not whole")
    return int(count)
