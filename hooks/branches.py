"""What each sub-layer adds to the residual stream, read off the additions inside a block.

The stream enters a block as its first argument. An addition of a tensor of the same shape to it is a
sub-layer, and its result is the stream from there on. Where a normalisation follows the addition
(Post-LN), the normalised stream is what the next sub-layer is added to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from stabilitylens.hooks.functions import After, Before, Function, named
from stabilitylens.hooks.provenance import Provenance

ADDITIONS = named("add", "add_", "__add__", "__radd__", "__iadd__")
Role = Literal["stream", "normed"]


class BranchWatch:
    """Hands each (branch, stream) pair to ``emit`` before they are added."""

    def __init__(self, emit: Callable[[Tensor, Tensor], None]) -> None:
        self._emit = emit
        self._roles: Provenance[Role] = Provenance()
        self._open = False
        self._entered: Tensor | None = None
        self.before: dict[Function, Before] = dict.fromkeys(ADDITIONS, self._addition)
        self.after: dict[Function, After] = dict.fromkeys(ADDITIONS, self._result)
        self._sum: tuple[Any, Any] | None = None

    def enter_block(self, args: tuple[Any, ...]) -> None:
        """A block begins; its first tensor is the stream."""
        self.leave_block()
        stream = next((a for a in args if isinstance(a, Tensor) and a.is_floating_point()), None)
        if stream is not None:
            self._open = True
            self._roles.set(stream, "stream")
            self._entered = stream

    def enter_module(self, args: tuple[Any, ...]) -> None:
        """The first module in a block begins; a wrapper of the block may have made another object of the stream."""
        entered, self._entered = self._entered, None
        given = args[0] if args else None
        if self._open and isinstance(given, Tensor) and isinstance(entered, Tensor) and given is not entered:
            if given.shape == entered.shape and given.data_ptr() == entered.data_ptr() != 0:
                self._roles.set(given, "stream")

    def leave_block(self) -> None:
        """A block ends; nothing outside it is a sub-layer."""
        self._open, self._sum, self._entered = False, None, None
        self._roles.clear()

    def leave_module(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        """A module without matrices that takes the stream and keeps its shape (a norm, a dropout) carries it on."""
        if not self._open or not isinstance(out, Tensor) or not args or self._roles.get(args[0]) is None:
            return
        if out.shape == args[0].shape and all(p.dim() < 2 for p in module.parameters()):
            self._roles.set(out, "normed")

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
        self._emit(branch, stream)
        self._sum = (a, b)

    def _result(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], out: Any) -> None:
        if self._sum is not None and self._sum[0] is args[0]:
            self._roles.clear()
            self._roles.set(out, "stream")
        self._sum = None
