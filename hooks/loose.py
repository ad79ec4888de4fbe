"""The layer that is under way where no call of one module begins and ends it.

That is so where the parent adds the branches to the stream itself, and where it calls a block by its ``forward``. Such a
layer begins with the first module in it that is called, and ends where another begins or the parent returns; the stream
after it is the last sum by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from stabilitylens.hooks.branches import BranchWatch
from stabilitylens.hooks.layers import parts_of
from stabilitylens.hooks.names import canonical_names

#: a module's canonical name and how many calls of it came before in the same forward
Site = tuple[str, int]
#: why the stream after a layer is not known
OUTSIDE = "the residual sum stands outside of the blocks, and no addition to the stream was seen there"


def layer_of_each(names: dict[nn.Module, str], layers: Iterable[str]) -> dict[str, str]:
    """The layer that each module belongs to, by name; none for one that several layers share."""
    part_of = {part: layer for layer in layers for part in parts_of(layer)}
    model = next((module for module, name in names.items() if not name), nn.Module())
    canonical, found = canonical_names(model), dict[nn.Module, set[str]]()
    for path, module in model.named_modules(remove_duplicate=False):
        steps = canonical[path].split(".")
        above = (".".join(steps[:n]) for n in range(len(steps), 0, -1))
        layer = next((part_of[name] for name in above if name in part_of), None)
        if layer is not None:
            found.setdefault(module, set()).add(layer)
    return {names[m]: next(iter(of)) for m, of in found.items() if len(of) == 1 and m in names}


class LooseLayers:
    """Follows such layers.

    Args:
        begin: makes the site of a layer that begins.
        end: told of a layer that has ended, with the stream after it, None where no sum was seen.

    Attributes:
        layer_of: the layer of each module, by name.
        site: of the layer that is under way; None where none is.
        stream: its last sum so far.
    """

    def __init__(self, branches: BranchWatch, begin: Callable[[str], Site], end: Callable[[Site, Tensor | None], None]) -> None:
        self._branches, self._begin, self._end = branches, begin, end
        self.layer_of: dict[str, str] = {}
        self.site: Site | None = None
        self.stream: Tensor | None = None
        self._parent, self._ran = "", set[str]()
        self._summed = False

    def holds(self, name: str) -> bool:
        """Whether a module belongs to the layer that is under way."""
        return self.site is not None and self.layer_of.get(name) == self.site[0]

    def enter(self, module: nn.Module, name: str, args: tuple[Any, ...], parent: str) -> None:
        """A module is about to run in no block that runs itself."""
        layer = self.layer_of.get(name)
        if layer is None or self.holds(parent):
            return
        again = self._summed and name in self._ran and any(p.dim() > 1 for p in module.parameters())
        before = self.stream
        if not self.holds(name) or again:
            self.end()
        if self.site is None:
            self._branches.enter_block(args, before)
            self.site, self._parent = self._begin(layer), parent
        self._ran.add(name)

    def go_on(self, site: Site, out: Tensor, parent: str) -> None:
        """A block has run in which nothing was added to the stream: what it returned may be a branch of it."""
        self.site, self.stream, self._parent = site, out, parent
        self._branches.left_with(out)

    def summed(self, out: Tensor) -> None:
        """Something was added to the stream."""
        if self.site is not None:
            self.stream, self._summed = out, True

    def leave(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        """A module has run; a norm of the layer that takes its last sum makes the stream after it."""
        if self.site is None:
            return
        if name == self._parent and not self.holds(name):
            self.end()
        elif self._summed and self.holds(name) and args and args[0] is self.stream and self._branches.is_normed(out):
            self.stream = out

    def end(self) -> None:
        """The layer that is under way ends, if one is."""
        site, stream = self.site, self.stream
        self.site, self.stream, self._summed = None, None, False
        self._ran.clear()
        if site is not None:
            self._branches.leave_block()
            self._end(site, stream)
