"""Which tensors of a forward and its backward are read: block outputs, sub-layers, attention, output logits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.attention import AttentionWatch, Call
from stabilitylens.hooks.attention_view import statistics
from stabilitylens.hooks.branches import BranchWatch
from stabilitylens.hooks.functions import FunctionWatch, merged
from stabilitylens.hooks.guard import Guard, guarded
from stabilitylens.hooks.modules import ModuleCalls, main_tensor
from stabilitylens.hooks.opaque import observe
from stabilitylens.hooks.slots import Slots
from stabilitylens.kernels import log_partition, moments, second_moments

#: a module's canonical name and how many calls of it came before in the same forward
Site = tuple[str, int]


def _precision(out: Tensor) -> str | None:
    """What the blocks compute in: autocast's dtype where it is on, else that of their output."""
    device = out.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else out.dtype
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype)


class ForwardTaps:
    """Observes one forward between ``with`` and its end, and the backward that follows through tensor hooks.

    Args:
        names: canonical name of each module.
        blocks: the repeated blocks by name.
        head: name of the module that makes the output logits, if it can be told.
        slots: where rows go.
    """

    def __init__(self, names: dict[nn.Module, str], blocks: set[str], head: str | None, slots: Slots, guard: Guard) -> None:
        self._blocks, self._head, self._slots, self.guard = blocks, head, slots, guard
        self._attention = AttentionWatch(self._attention_call)
        self._branches = BranchWatch(self._branch)
        self._calls = ModuleCalls(names, self, guard)
        self._functions = FunctionWatch(
            guard, merged(self._branches.before), merged(self._branches.after, self._attention.after), self._attention.heads
        )
        self.layers: dict[Site, None] = {}
        self.attention: dict[Site, None] = {}
        self.branch_kinds: dict[int, str] = {}
        self.precision: str | None = None
        self.compiled = False
        self.ran = False
        self.skipped: dict[str, str] = {}
        self._inside: list[Site] = []
        self._without_grad: Site | None = None
        self._attended = False
        self._count: Counter[str] = Counter()
        self._branch_count = 0

    @property
    def fused(self) -> set[str]:
        """Modules that torch may have run as one fused kernel, which shows nothing of its inside."""
        return self._calls.fused

    def __enter__(self) -> None:
        self.ran = True
        self._count.clear()
        self._calls.__enter__()
        self._functions.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *_: object) -> None:
        self._functions.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._calls.__exit__()
        self._inside.clear()
        self._without_grad = None
        self._branches.leave_block()
        try:
            self._attention.flush()
        except Exception as error:
            self.guard.failed("the last attention call of a forward", error)

    def _site(self, name: str) -> Site:
        site = (name, self._count[name])
        self._count[name] += 1
        return site

    def enter(self, module: nn.Module, name: str, args: tuple[Any, ...]) -> None:
        """A module is about to run."""
        stream = next((a for a in args if isinstance(a, Tensor)), None)
        if self._without_grad is not None and stream is not None and stream.requires_grad and stream.is_floating_point():
            self._gradient(self._without_grad, stream)
            self._without_grad = None
        if name in self._blocks:
            site = self._site(f"block {name}")
            self._inside.append((name, site[1]))
            self._branches.enter_block(args)
            self._branch_count, self._attended = 0, False

    def leave(self, module: nn.Module, name: str, args: tuple[Any, ...], out: Any) -> None:
        """A module has run."""
        if self._inside and self._inside[-1][0] == name:
            site = self._inside.pop()
            self._branches.leave_block()
            self._attention.flush()  # or q and k of every block would live until the end of the forward
            self._block(site, main_tensor(out))
        else:
            self._branches.leave_module(module, args, out)
        if name == self._head and isinstance(out, Tensor):
            observe(lambda z: self._slots.add("logits", "logits", log_partition(z)), out)

    def _block(self, site: Site, out: Tensor | None) -> None:
        if out is None or out.is_nested:
            self.skipped[site[0]] = "it returned no plain tensor"
            return
        self.stream(site, out)
        if out.requires_grad:
            self._gradient(site, out)
        else:  # reentrant checkpointing runs the block without grad; the next module's input is the same value
            self._without_grad = site

    def _gradient(self, site: Site, tensor: Tensor) -> None:
        tensor.register_hook(lambda grad: self.gradient(site, grad))

    @guarded("the residual stream")
    def stream(self, site: Site, out: Tensor) -> None:
        """The residual stream after a block."""
        self.layers[site] = None
        self.precision = _precision(out)
        observe(lambda x: self._slots.add("resid", site, moments(x)), out)

    @guarded("the gradient of a block's output")
    def gradient(self, site: Site, grad: Tensor) -> None:
        """The gradient of the residual stream after a block."""
        observe(lambda g: self._slots.add("resid_grad", site, second_moments(g)), grad)

    def _branch(self, branch: Tensor, stream: Tensor) -> None:
        if not self._inside:
            return
        key = (self._inside[-1], self._branch_count)
        self.branch_kinds.setdefault(self._branch_count, "attention" if self._attended else "feed_forward")
        self._branch_count, self._attended = self._branch_count + 1, False

        def record(added: Tensor, to: Tensor) -> None:
            self._slots.add("branch", key, second_moments(added))
            self._slots.add("stream", key, second_moments(to))

        observe(record, branch, stream)

    def _attention_call(self, call: Call) -> None:
        self._attended = True
        name = self._calls.current
        device = call.tensors[0].device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self.attention_call((name, self._site(f"attention {name}")[1]), call, cast)

    @guarded("an attention call")
    def attention_call(self, site: Site, call: Call, cast: torch.dtype | None) -> None:
        """An attention call, with the dtype that autocast takes it to."""

        def record(*_: Tensor) -> None:
            heads, kv_heads = statistics(call.resolve(), cast)
            self._slots.add("attention", site, heads)
            self._slots.add("key_value", site, kv_heads)

        observe(record, *call.tensors)
        self.attention[site] = None
