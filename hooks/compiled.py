"""Taps that survive torch.compile: operators in the graph itself, the same graph whether a step is sampled or not.

In a compiled forward no hook runs and no mode sees anything, but an operator that claims to change a tensor
is kept in the graph, in order. Hooks on the blocks, traced with them, put one before and one after each
block, one on the gradient of its output, and one before each scaled dot-product attention. At run time they
call back here, which costs a test between sampled steps. In eager mode the hooks do nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stabilitylens.hooks.attention import Call, Resolved
from stabilitylens.hooks.arrange import as_heads
from stabilitylens.hooks.copies import Hook
from stabilitylens.hooks.opaque import LIBRARY
from stabilitylens.hooks.taps import ForwardTaps, main_tensor

LIBRARY.define("mark(Tensor[] tensors, Tensor(a!) order, int owner, int site, str what, float scale, bool causal, str cast) -> ()")
_OWNERS: weakref.WeakValueDictionary[int, CompiledTaps] = weakref.WeakValueDictionary()
_SDPA = F.scaled_dot_product_attention
_RUNNING: list[tuple[CompiledTaps, int]] = []


def _mark(
    tensors: list[Tensor], order: Tensor, owner: int, site: int, what: str, scale: float, causal: bool, cast: str
) -> None:
    if what == "attention":
        if _RUNNING:
            taps, site = _RUNNING[-1]
            taps.attention(site, tensors, scale, causal, cast)
    elif owner in _OWNERS:
        _OWNERS[owner].mark(site, what, tensors[0])


def _mark_fake(*_: object) -> None:
    return None


LIBRARY.impl("mark", _mark, "CompositeExplicitAutograd")
LIBRARY.impl("mark", _mark_fake, "Meta")


def _watched_sdpa(*args: Any, **kwargs: Any) -> Tensor:
    """Scaled dot-product attention, with an operator before it while a graph is traced."""
    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        q, mask, scale = given["query"], given.get("attn_mask"), given.get("scale")
        tensors = [q.detach(), given["key"].detach(), given["value"].detach()]
        tensors += [] if mask is None else [mask.detach()]
        device = q.device.type
        cast = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
        factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
        torch.ops.stabilitylens.mark(tensors, _ORDER, 0, 0, "attention", factor, bool(given.get("is_causal")), cast)
    return _SDPA(*args, **kwargs)


#: what the operators claim to change, so that they are kept and stay in order
_ORDER = torch.zeros(())
_USERS = 0


class CompiledTaps:
    """The taps of one model for the graphs that are compiled while it is observed.

    Blocks that torch may run as one fused encoder layer get no hook, since any hook would prevent that.

    Args:
        blocks: the repeated blocks by name.
        taps: where what is seen goes.
        wanted: whether this step is sampled.
    """

    def __init__(self, blocks: dict[str, nn.Module], taps: ForwardTaps, wanted: Callable[[], bool]) -> None:
        self._names, self._taps, self._wanted = list(blocks), taps, wanted
        self._calls = 0
        self._id = id(self)
        _OWNERS[self._id] = self
        self._handles = []
        for site, block in enumerate(blocks.values()):
            if not isinstance(block, nn.TransformerEncoderLayer):
                self._handles.append(block.register_forward_pre_hook(Hook(self._before(site))))
                self._handles.append(block.register_forward_hook(Hook(self._after(site))))
        _patch(+1)

    def remove(self) -> None:
        """Take the hooks off and put torch's function back."""
        for handle in self._handles:
            handle.remove()
        _OWNERS.pop(self._id, None)
        _patch(-1)

    def _before(self, site: int) -> Callable[..., None]:
        owner = self._id

        def before(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if torch.compiler.is_compiling() and torch.is_grad_enabled():
                x = main_tensor(args)
                if x is not None:
                    _put(x, owner, site, "begin")

        return before

    def _after(self, site: int) -> Callable[..., None]:
        owner = self._id

        def after(_module: nn.Module, _args: tuple[Any, ...], out: Any) -> None:
            if torch.compiler.is_compiling() and torch.is_grad_enabled():
                x = main_tensor(out)
                if x is not None:
                    _put(x, owner, site, "end")
                    if x.requires_grad:
                        x.register_hook(lambda grad: _put(grad, owner, site, "gradient"))

        return after

    def mark(self, site: int, what: str, tensor: Tensor) -> None:
        """What an operator in the graph saw, at run time."""
        backward = torch._C._current_graph_task_id() != -1
        if not self._wanted() or (what == "gradient") != backward:
            return
        if what == "begin":
            self._calls = 0
            _RUNNING[:] = [(self, site)]
        elif what == "end":
            _RUNNING.clear()
            self._taps.stream((self._names[site], 0), tensor)
        else:
            self._taps.gradient((self._names[site], 0), tensor)

    def attention(self, site: int, tensors: list[Tensor], scale: float, causal: bool, cast: str) -> None:
        """An attention call inside a block, at run time."""
        if torch._C._current_graph_task_id() == -1:
            mask = tensors[3] if len(tensors) > 3 else None
            q, k, v = map(as_heads, tensors[:3])
            call = Resolved(q, k, v, scale, mask, causal)
            place = (self._names[site], self._calls)
            self._calls += 1
            dtype = getattr(torch, cast.removeprefix("torch.")) if cast else None
            self._taps.attention_call(place, Call(tuple(tensors), lambda: call), dtype)


def _put(x: Tensor, owner: int, site: int, what: str) -> None:
    torch.ops.stabilitylens.mark([x.detach()], _ORDER, owner, site, what, 1.0, False, "")


def _patch(users: int) -> None:
    """Have torch's function watched while anybody observes."""
    global _USERS
    _USERS += users
    F.scaled_dot_product_attention = _watched_sdpa if _USERS else _SDPA
