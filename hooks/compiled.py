"""Taps that survive torch.compile: operators in the graph itself, the same graph whether a step is sampled or not.

In a compiled forward no hook runs and no mode sees anything, but an operator that claims to change a tensor
is kept in the graph, in order. Hooks on the blocks, traced with them, put one before and one after each
block, one on the gradient of its output, and one before each scaled dot-product attention. At run time they
call back here, which costs a test between sampled steps. In eager mode the hooks do nothing.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stabilitylens.anatomy import Anatomy
from stabilitylens.hooks.arrange import as_heads
from stabilitylens.hooks.attention_call import Call, Resolved
from stabilitylens.hooks.copies import AfterHook, BeforeHook
from stabilitylens.hooks.modules import main_tensor
from stabilitylens.hooks.opaque import LIBRARY
from stabilitylens.hooks.taps import ForwardTaps

LIBRARY.define("mark(Tensor[] tensors, Tensor(a!) order, str what, float scale, bool causal, str cast) -> ()")
_OWNERS: weakref.WeakValueDictionary[int, CompiledTaps] = weakref.WeakValueDictionary()
_SDPA = F.scaled_dot_product_attention
_RUNNING: list[tuple[CompiledTaps, str]] = []


def _mark(
    tensors: list[Tensor], order: Tensor, what: str, scale: float, causal: bool, cast: str
) -> None:
    if what == "attention":
        if _RUNNING:
            taps, name = _RUNNING[-1]
            taps.attention(name, tensors, scale, causal, cast)
    else:
        for taps in list(_OWNERS.values()):  # of two models of one class the second may run the graph of the first
            taps.mark(what, *tensors)


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
        torch.ops.stabilitylens.mark(tensors, _ORDER, "attention", factor, bool(given.get("is_causal")), cast)
    return _SDPA(*args, **kwargs)


_watched_sdpa.__wrapped__ = _SDPA  # type: ignore[attr-defined]
#: what the operators claim to change, so that they are kept and stay in order
_ORDER = torch.zeros(())
_USERS = 0


class CompiledTaps:
    """The taps of one model for the graphs that are compiled while it is observed.

    Blocks that torch may run as one fused encoder layer get no hook, since any hook would prevent that.
    A model that makes a key-value cache inside its forward gets none on gradients: torch 2.13 cannot trace
    a hook on an intermediate tensor beside such an object and, asked for a full graph, would stop the run.

    Args:
        model: the model.
        blocks: the repeated blocks by name.
        taps: where what is seen goes.
        wanted: whether this step is sampled.
        anatomy: tells which blocks have self-attention alone: in a graph no tensor can be followed to where it came from.
    """

    def __init__(
        self, model: nn.Module, blocks: dict[str, nn.Module], taps: ForwardTaps, wanted: Callable[[], bool], anatomy: Anatomy | None = None
    ) -> None:
        self._blocks, self._taps, self._wanted, self._alone = blocks, taps, wanted, _attend_themselves(anatomy)
        self._gradients = not any(getattr(getattr(m, "config", None), "use_cache", False) for m in model.modules())
        self._calls = 0
        self._id = id(self)
        _OWNERS[self._id] = self
        self._handles = []
        before, after = BeforeHook(self._before), AfterHook(self._after)
        for block in blocks.values():
            if not isinstance(block, nn.TransformerEncoderLayer):
                self._handles.append(block.register_forward_pre_hook(before))
                self._handles.append(block.register_forward_hook(after))
        _patch(+1)
        if blocks:
            _forget_graphs(model)

    def remove(self) -> None:
        """Take the hooks off and put torch's function back."""
        for handle in self._handles:
            handle.remove()
        _OWNERS.pop(self._id, None)
        _patch(-1)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() and torch.is_grad_enabled():
            x = main_tensor(args)
            if x is not None:
                _put(x, next(module.parameters()), "begin")

    def _after(self, module: nn.Module, _args: tuple[Any, ...], out: Any) -> None:
        if torch.compiler.is_compiling() and torch.is_grad_enabled():
            x = main_tensor(out)
            if x is not None:
                sign = next(module.parameters())
                _put(x, sign, "end")
                if self._gradients and x.requires_grad:
                    x.register_hook(lambda grad: _put(grad, sign, "gradient"))

    def mark(self, what: str, tensor: Tensor, sign: Tensor) -> None:
        """What an operator in the graph saw, at run time."""
        backward = torch._C._current_graph_task_id() != -1
        if not self._wanted() or (what == "gradient") != backward:
            return
        name = self._name_of(sign)
        if name is None:
            return
        self._taps.compiled = True
        if what == "begin":
            self._calls = 0
            _RUNNING[:] = [(self, name)]
        elif what == "end":
            _RUNNING.clear()
            self._taps.stream((name, 0), tensor)
        else:
            self._taps.gradient((name, 0), tensor)

    def _name_of(self, sign: Tensor) -> str | None:
        """The block whose first parameter this is; None where it is another model's."""
        return next((n for n, b in self._blocks.items() if next(b.parameters()).data_ptr() == sign.data_ptr()), None)

    def attention(self, name: str, tensors: list[Tensor], scale: float, causal: bool, cast: str) -> None:
        """An attention call inside a block, at run time."""
        if torch._C._current_graph_task_id() == -1:
            mask = tensors[3] if len(tensors) > 3 else None
            q, k, v = map(as_heads, tensors[:3])
            call = Resolved(q, k, v, scale, mask, causal, self_attention=name in self._alone and q.shape[2] == k.shape[2])
            place = (name, self._calls)
            self._calls += 1
            dtype = getattr(torch, cast.removeprefix("torch.")) if cast else None
            self._taps.attention_call(place, Call(tuple(tensors), lambda: call), dtype)


def _attend_themselves(anatomy: Anatomy | None) -> set[str]:
    """Blocks in which no attention call is of other positions than its own, or may be."""
    calls = anatomy.attention_calls if anatomy is not None else ()
    layers = anatomy.layers if anatomy is not None else ()
    placed = [(layers[call.layer], call) for call in calls if call.layer is not None and call.layer < len(layers)]
    return {name for name, _ in placed} - {name for name, call in placed if call.cross or call.uncertain}


def _put(x: Tensor, sign: Tensor, what: str) -> None:
    torch.ops.stabilitylens.mark([x.detach(), sign.detach()], _ORDER, what, 1.0, False, "")


def _forget_graphs(model: nn.Module) -> None:
    """Have code of the model that was compiled for another one traced anew: torch's guards overlook hooks."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        wrapper = dynamo.external_utils.wrap_inline(nn.Identity())
        for forward in (wrapper, *{getattr(type(module), "forward", None) for module in model.modules()}):
            code = getattr(forward, "__code__", None)
            if code is not None:
                dynamo.eval_frame.reset_code(code)


def _patch(users: int) -> None:
    """Have torch's function watched while anybody observes."""
    global _USERS
    _USERS += users
    F.scaled_dot_product_attention = _watched_sdpa if _USERS else _SDPA
