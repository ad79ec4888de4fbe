"""What each sub-layer adds to the residual stream, read off the additions inside a layer.

The stream enters a layer as its first argument. An addition of a tensor of the same shape to it is a
sub-layer, and its result is the stream from there on. Where a normalisation follows the addition
(Post-LN), the normalised stream is what the next sub-layer is added to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from stabilitylens.hooks.functions import After, Before, Function, named
from stabilitylens.hooks.provenance import Provenance

ADDITIONS = named("add", "add_", "__add__", "__radd__", "__iadd__")
Role = Literal["stream", "normed", "branch"]


class BranchWatch:
    """Hands each (branch, stream) pair to ``emit`` before they are added, and each sum to ``summed``."""

    def __init__(self, emit: Callable[[Tensor, Tensor], None], summed: Callable[[Tensor], None] = lambda _: None) -> None:
        self._emit, self._summed = emit, summed
        self._roles: Provenance[Role] = Provenance()
        self._sources: Provenance[weakref.ref[Tensor]] = Provenance()
        self._open = False
        self._entered: Tensor | None = None
        self.before: dict[Function, Before] = dict.fromkeys(ADDITIONS, self._addition)
        self.after: dict[Function, After] = dict.fromkeys(ADDITIONS, self._result)
        self._sum: tuple[Any, Any] | None = None

    def enter_block(self, args: tuple[Any, ...], before: Tensor | None = None) -> None:
        """A layer begins; its first tensor is the stream, or the stream normalised, as is what the layer ``before`` left."""
        self.leave_block()
        stream = next((a for a in args if isinstance(a, Tensor) and a.is_floating_point()), None)
        if stream is not None:
            self._open = True
            source = self._sources.get(stream)
            for x in (stream, before, source() if source is not None else None):
                if x is not None:
                    self._roles.set(x, "stream")
            self._entered = stream

    def enter_module(self, args: tuple[Any, ...]) -> None:
        """The first module in a block begins; a wrapper of the block may have made another object of the stream."""
        entered, self._entered = self._entered, None
        given = args[0] if args else None
        if self._open and isinstance(given, Tensor) and isinstance(entered, Tensor) and given is not entered:
            if given.shape == entered.shape and given.data_ptr() == entered.data_ptr() != 0:
                self._roles.set(given, "stream")

    def left_with(self, out: Tensor) -> None:
        """A block has returned what may be a branch that is yet to be added to the stream."""
        self._open, self._entered = True, None
        if self._roles.get(out) is None:
            self._roles.set(out, "branch")

    def leave_block(self) -> None:
        """A layer ends; nothing outside it is a sub-layer."""
        self._open, self._sum, self._entered = False, None, None
        self._roles.clear()

    def forget(self) -> None:
        """A forward ends."""
        self.leave_block()
        self._sources.clear()

    def leave_module(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        """A module without matrices that takes the stream and keeps its shape (a norm, a dropout) carries it on."""
        given = args[0] if args else None
        if not isinstance(out, Tensor) or not isinstance(given, Tensor) or given is out:
            return
        role = self._roles.get(given) if self._open else None
        if (self._open and role is None) or out.shape != given.shape or any(p.dim() > 1 for p in module.parameters()):
            return
        if role is None:
            self._sources.set(out, weakref.ref(given))
        else:
            self._roles.set(out, "branch" if role == "branch" else "normed")

    def is_normed(self, out: Any) -> bool:
        """Whether a tensor is the stream, normalised."""
        return self._roles.get(out) == "normed"

    def _addition(self, _f: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._sum = None
        if not self._open:
            return
        a, b = args[0], args[1] if len(args) > 1 else kwargs.get("other")
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
            return
        of_a, of_b = self._roles.get(a), self._roles.get(b)
        if of_a == of_b:
            return
        first = of_b is None or of_a == "stream"
        stream, branch = (a, b) if first else (b, a)
        if {of_a, of_b} != {"branch", None}:  # else it is not known to be the stream that it is added to
            self._emit(branch, stream)
        self._sum = (a, b)

    def _result(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], out: Any) -> None:
        if self._sum is not None and self._sum[0] is args[0]:
            self._roles.clear()
            self._roles.set(out, "stream")
            self._summed(out)
        self._sum = None
