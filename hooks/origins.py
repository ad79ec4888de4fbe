"""Where a tensor of the forward came from: the projection that made it, and how its output was laid out since.

The output of a product with weights is an origin. Whatever only changes its layout (views, splits, transposes) is
remembered so that it can be done again; whatever changes its values and keeps its shape (norms, rotations, casts,
scales) is passed over. So the queries that enter an attention call lead back to the very elements that their
projection made, whatever the layout of a fused projection is and whoever wrote the norm in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from stabilitylens.hooks.functions import Function, named
from stabilitylens.hooks.provenance import Provenance
from stabilitylens.hooks.sources import MOVING, Place, Sources, joined, rows_given

#: change the layout of a tensor and none of its values
LAYOUTS = named(
    "view", "reshape", "transpose", "permute", "contiguous", "flatten", "unflatten", "swapaxes", "swapdims", "movedim",
    "moveaxis", "unbind", "chunk", "split", "split_with_sizes", "tensor_split", "narrow", "select", "__getitem__",
    "unsqueeze", "squeeze", "expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile", "view_as_complex", "view_as_real", "t",
)  # fmt: skip
JOINS = named("cat", "concat", "stack")
WEIGHTED = named("linear", "conv1d", "conv2d", "conv3d")
PRODUCTS = named("matmul", "__matmul__", "mm", "bmm", "einsum", "addmm", "addbmm", "baddbmm")
SUMS = named("add", "add_", "__add__", "__radd__", "__iadd__")
#: what it makes has other elements than what it was given
BREAKS = PRODUCTS | WEIGHTED | named("scaled_dot_product_attention", "embedding", "cumsum", "where")


@dataclass(frozen=True, eq=False)
class Origin:
    """What a tensor was when its projection had made it.

    Attributes:
        roots: the outputs of projections that it is made of.
        values: lays them out as the tensor is laid out; for the inside of the opaque operator.
        changed: the values of the tensor are no longer these.
        through: names of the functions that changed them.
        others: equally good readings, where two halves were mixed by a rotation.
        place: what the projections were given.
    """

    roots: tuple[Tensor, ...]
    values: Callable[[], Tensor]
    changed: bool = False
    through: frozenset[str] = frozenset()
    others: tuple[Origin, ...] = ()
    place: Place = field(default_factory=Place.unknown)


class Overwritten(Exception):
    """What a projection made was changed in place since, so that it can no longer be read."""


def _root(out: Tensor, place: Place) -> Origin:
    version = out._version

    def values() -> Tensor:
        if out._version != version:
            raise Overwritten
        return out.detach()

    return Origin((out,), values, place=place)


def _is_weight(x: Any) -> bool:
    """A parameter, or a view of one."""
    return isinstance(x, Tensor) and (
        isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter) or (x.is_leaf and x.requires_grad)
    )


def _projects(args: tuple[Any, ...]) -> bool:
    """Whether a product is one with weights: its second operand may be a matrix that was made of them."""
    operands = [x for x in _flat(args) if isinstance(x, Tensor)]
    return any(map(_is_weight, operands)) or (len(operands) > 1 and operands[-1].dim() == 2)


class OriginWatch:
    """Keeps the origin of each tensor that leads back to a projection."""

    def __init__(self) -> None:
        self._origins: Provenance[Origin] = Provenance()
        self._sources = Sources()

    def get(self, tensor: Any) -> Origin | None:
        """The origin of a tensor; None where it leads back to none."""
        return self._origins.get(tensor)

    def place(self, tensor: Tensor) -> Place:
        """Where a tensor comes from: two of equal places are made of the same positions."""
        origin = self._origins.get(tensor)
        return self._sources.of(tensor) if origin is None else origin.place

    def clear(self) -> None:
        """Forget everything."""
        self._origins.clear()
        self._sources.clear()

    def after(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Any torch function has run."""
        if func in LAYOUTS:
            if args and (before := self._origins.get(args[0])) is not None:
                self._lay_out(before, func, args[1:], kwargs, out)
            elif args:
                self._sources.arranged(func, args[0], out)
        elif not isinstance(out, Tensor) or not (out.is_floating_point() or out.is_complex()):
            return
        elif func in WEIGHTED or (func in PRODUCTS and _projects(args)):
            self._origins.set(out, _root(out, self._given(func, args, kwargs)))
        elif func in BREAKS:
            return
        elif func in JOINS:
            self._join(func, args, kwargs, out)
        else:
            self._change(func, args, out)

    def _given(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place:
        """The place of what a projection is given."""
        several = (*_flat(args), *(kwargs[n] for n in ("input", "mat1") if n in kwargs))
        tensors = [x for x in several if isinstance(x, Tensor) and x.dim() > 1]
        given = tensors[0] if func in WEIGHTED else next((x for x in tensors if not _is_weight(x)), None)
        if given is None:
            return Place.unknown()
        place, rows = self.place(given), rows_given(func, given)
        return replace(place, rows=rows) if place.rows in (None, rows) else Place.unknown()

    def _lay_out(self, before: Origin, func: Function, rest: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if isinstance(out, Tensor):
            self._origins.set(out, _moved(before, lambda x: func(x, *rest, **kwargs)))
            return
        for i, part in enumerate(out):
            self._origins.set(part, _moved(before, _part_of(func, rest, kwargs, i)))

    def _join(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        parts = [self._origins.get(x) for x in args[0] if x.numel()]  # a cache starts with an empty tensor
        known = _distinct([p for p in parts if p is not None])
        if not known or len(known) < len(parts):
            return
        rest = args[1:]
        dim = kwargs.get("dim", rest[0] if rest else 0)
        place = joined((p.place for p in known), getattr(func, "__name__", "") == "stack" or dim in (-1, out.dim() - 1))
        roots = tuple({id(r): r for p in known for r in p.roots}.values())
        self._origins.set(
            out,
            Origin(
                roots, lambda: func([p.values() for p in known], *rest, **kwargs), any(p.changed for p in known),
                frozenset().union(*(p.through for p in known)), place=place,
            ),
        )  # fmt: skip

    def _change(self, func: Function, args: tuple[Any, ...], out: Tensor) -> None:
        alike = [x for x in args[:3] if isinstance(x, Tensor) and x.shape == out.shape]
        known = [o for o in map(self._origins.get, alike) if o is not None]
        if not known:
            self._sources.changed(func, alike, out, func in SUMS)
            return
        if func in SUMS and _adds_projections(known, args):
            self._origins.set(out, _root(out, joined((o.place for o in known), True)))
            return
        name = getattr(func, "__name__", "")
        through = frozenset({name}).union(*(o.through for o in known))
        place = Place.unknown() if func in MOVING else known[0].place
        self._origins.set(out, replace(known[0], changed=True, through=through, others=tuple(known[1:]), place=place))


def _part_of(func: Function, rest: tuple[Any, ...], kwargs: dict[str, Any], i: int) -> Callable[[Tensor], Tensor]:
    return lambda x: func(x, *rest, **kwargs)[i]


def _moved(before: Origin, layout: Callable[[Tensor], Tensor]) -> Origin:
    values = before.values
    others = tuple(_moved(o, layout) for o in before.others)
    return replace(before, values=lambda: layout(values()), others=others)


def _adds_projections(known: list[Origin], args: tuple[Any, ...]) -> bool:
    """Whether this sum is still a projection: of two (as an adapter's), or of one and its bias."""
    if len(known) == 2:
        return not {id(r) for r in known[0].roots} & {id(r) for r in known[1].roots}
    return not known[0].changed and any(_is_weight(x) and x.dim() == 1 for x in args[:2])


def _distinct(parts: list[Origin]) -> list[Origin]:
    """A reading for each part such that no two read the same elements, where there is one."""
    chosen: list[Origin] = []
    taken: set[Any] = set()
    for part in parts:
        free = [o for o in (part, *part.others) if id(o.values) not in taken]
        chosen.append(free[0] if free else part)
        taken.add(id(chosen[-1].values))
    return chosen


def _flat(args: Iterable[Any]) -> Iterable[Any]:
    for a in args:
        if isinstance(a, (tuple, list)):
            yield from a
        else:
            yield a
