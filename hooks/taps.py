"""Which tensors of a forward and its backward are read: block outputs, sub-layers, attention, output logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.attention import AttentionWatch
from stabilitylens.hooks.attention_call import Call
from stabilitylens.hooks.attention_view import statistics
from stabilitylens.hooks.branches import BranchWatch
from stabilitylens.hooks.foreign import ForeignAttention
from stabilitylens.hooks.functions import FunctionWatch, merged
from stabilitylens.hooks.gains import GainWatch, Kind, weight_row
from stabilitylens.hooks.guard import Guard, guarded
from stabilitylens.hooks.layers import parts_of
from stabilitylens.hooks.loose import OUTSIDE, LooseLayers, Site, layer_of_each
from stabilitylens.hooks.modules import ModuleCalls, main_tensor
from stabilitylens.hooks.opaque import autocast_dtype, observe, precision_of
from stabilitylens.hooks.origins import OriginWatch
from stabilitylens.hooks.routing import RouterWatch
from stabilitylens.hooks.selection import RowOf
from stabilitylens.hooks.slots import Slots
from stabilitylens.kernels import fourth_moments, log_partition

#: the taps of a forward and its backward
#: told by the layers that fuse_norms took
OF_FUSED_NORMS = frozenset({"norm_input", "norm_output", "norm_input_grad", "norm_output_grad"})
FORWARD = frozenset({"resid", "resid_grad", "branch", "stream", "attention", "key_value", "logits"}) | frozenset(
    {"query_proj", "key_proj", "soft_cap", "norm_gain", "dyt_alpha", "router", "expert", "resid_4"}
) | OF_FUSED_NORMS
#: those for which functions are followed: what they call, or where they add to the stream
FOLLOWING = FORWARD - OF_FUSED_NORMS - {"logits"}
#: those of an attention call
OF_ATTENTION = frozenset({"attention", "key_value", "query_proj", "key_proj", "soft_cap"})
#: those for which tensors are followed from the projection that made them: of attention it tells whether it is of one sequence
FOLLOWED = frozenset({"query_proj", "key_proj", "router", "expert", "attention", "soft_cap"})


class ForwardTaps:
    """Observes one forward between ``with`` and its end, and the backward that follows through tensor hooks.

    Args:
        names: canonical name of each module.
        blocks: the repeated blocks by name.
        head: name of the module that makes the output logits, if it can be told.
        slots: where rows go.
        wanted: the taps that are read.
        rows: what makes a row of each tap of ``Moments``.
    """

    def __init__(
        self, names: dict[nn.Module, str], blocks: set[str], head: str | None, slots: Slots, guard: Guard, wanted: frozenset[str],
        rows: Mapping[str, RowOf],
    ) -> None:
        self._head, self._slots, self.guard, self._wanted, self._rows = head, slots, guard, wanted, rows
        self._origins = OriginWatch()
        self._attention = AttentionWatch(self._attention_call, self._origins, self._unseen_softmax)
        self._branches = BranchWatch(self._branch, lambda out: self._loose.summed(out))
        self._loose = LooseLayers(self._branches, self._begun, self._ended)
        self._calls = ModuleCalls(names, self, guard)
        self._gains = GainWatch(self._gain, lambda: self._calls.current)
        self.routers = RouterWatch({}, (), self._origins, lambda: self._calls.current)
        self._functions = FunctionWatch(
            guard, merged(self._branches.before),
            merged(self._branches.after, self._attention.after, self._gains.after),
            self._attention.heads, (self._origins.after, self.routers.after) if wanted & FOLLOWED else (),
        )  # fmt: skip
        self._foreign = ForeignAttention(self._attention, self._origins, self._functions, names, guard)
        self.follow(names, blocks)
        self.layers: dict[Site, None] = {}
        self.attention: dict[Site, None] = {}
        self.norms: dict[Site, None] = {}
        self.branch_kinds: dict[int, str] = {}
        self.precision: str | None = None
        self.compiled = False
        self.ran = False
        self.skipped: dict[str, str] = {}
        self._untold: dict[str, dict[Site, None]] = {}
        self._inside: list[Site] = []
        self._without_grad: Site | None = None
        self._attended = False
        self._count: Counter[str] = Counter()
        self._branch_count = 0

    def follow(self, names: dict[nn.Module, str], blocks: set[str]) -> None:
        """Observe blocks of these names from now on."""
        self._blocks, self._loose.layer_of = blocks, layer_of_each(names, blocks)
        self.routers.find(names, [part for layer in blocks for part in parts_of(layer)])

    @property
    def fused(self) -> set[str]:
        """Modules that torch may have run as one fused kernel, which shows nothing of its inside."""
        return self._calls.fused

    def __enter__(self) -> None:
        self.ran = True
        self._count.clear()
        self._calls.__enter__()
        if self._wanted & FOLLOWING:
            self._functions.__enter__()  # type: ignore[no-untyped-call]
        if self._wanted & OF_ATTENTION:
            self._foreign.put()

    def __exit__(self, *_: object) -> None:
        if self._wanted & FOLLOWING:
            self._functions.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._foreign.take_back()
        self._calls.__exit__()
        self._inside.clear()
        try:
            self._loose.end()
            self._without_grad = None
            self._branches.forget()
            self._forget()
        except Exception as error:
            self.guard.failed("the last attention call of a forward", error)

    def _forget(self) -> None:
        """No tensor of a block is kept beyond its end."""
        self._attention.flush()
        self._origins.clear()
        self._gains.clear()

    @property
    def _running(self) -> str:
        """The innermost module that is running; the layer where its parent runs it."""
        name, layer = self._calls.current, self._loose.site
        return name if self._inside or layer is None or self._loose.holds(name) else layer[0]

    def _site(self, name: str) -> Site:
        site = (name, self._count[name])
        self._count[name] += 1
        return site

    def enter(self, module: nn.Module, name: str, args: tuple[Any, ...]) -> None:
        """A module is about to run."""
        if name in self._blocks:
            self._loose.end()
        elif not self._inside:
            self._loose.enter(module, name, args, self._calls.current)
        stream = next((a for a in args if isinstance(a, Tensor)), None)
        if self._without_grad is not None and stream is not None and stream.requires_grad and stream.is_floating_point():
            self._gradient(self._without_grad, stream)
            self._without_grad = None
        if name in self._blocks:
            site = self._site(f"block {name}")
            self._inside.append((name, site[1]))
            self._branches.enter_block(args)
            self._branch_count, self._attended = 0, False
        elif self._inside:
            self._branches.enter_module(args)

    def leave(self, module: nn.Module, name: str, args: tuple[Any, ...], out: Any) -> None:
        """A module has run."""
        if self._inside and self._inside[-1][0] == name:
            self._left(self._inside.pop(), main_tensor(out))
        else:
            self._branches.leave_module(module, args, out)
            if not self._inside:
                self._loose.leave(name, args, out)
        if name == self._head and isinstance(out, Tensor) and "logits" in self._wanted:
            observe(lambda z: self._slots.add("logits", "logits", log_partition(z)), out)

    def _left(self, site: Site, out: Tensor | None) -> None:
        """A block has run; where it has added nothing to the stream, that may yet be done with what it returned."""
        self._routed(site)
        self._forget()
        if not self._inside and not self._branch_count and out is not None and out.requires_grad and not out.is_nested:
            self._loose.go_on(site, out, self._calls.current)
            return
        self._branches.leave_block()
        self._block(site, out)

    def _begun(self, name: str) -> Site:
        """A layer begins that no module's call holds together."""
        self._branch_count, self._attended = 0, False
        return name, self._site(f"block {name}")[1]

    @guarded("the end of a layer")
    def _ended(self, site: Site, stream: Tensor | None) -> None:
        """It has ended."""
        self._routed(site)
        self._forget()
        if stream is not None:
            self._block(site, stream)
        elif site not in self.layers:
            self.skipped[site[0]] = OUTSIDE

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
        if "resid_grad" in self._wanted:
            tensor.register_hook(lambda grad: self.gradient(site, grad))

    @guarded("the residual stream")
    def stream(self, site: Site, out: Tensor) -> None:
        """The residual stream after a block."""
        self.layers[site] = None
        self.precision = precision_of(out)
        if "resid" in self._wanted:
            observe(lambda x: self._slots.add("resid", site, self._rows["resid"](x)), out)
        if "resid_4" in self._wanted:
            observe(lambda x: self._slots.add("resid_4", site, fourth_moments(x)), out)

    @guarded("the gradient of a block's output")
    def gradient(self, site: Site, grad: Tensor) -> None:
        """The gradient of the residual stream after a block."""
        if "resid_grad" in self._wanted:
            observe(lambda g: self._slots.add("resid_grad", site, self._rows["resid_grad"](g)), grad)

    def _branch(self, branch: Tensor, stream: Tensor) -> None:
        layer = self._inside[-1] if self._inside else self._loose.site
        if layer is None:
            return
        key = (layer, self._branch_count)
        self.branch_kinds.setdefault(self._branch_count, "attention" if self._attended else "feed_forward")
        self._branch_count, self._attended = self._branch_count + 1, False
        for tap, tensor in (("branch", branch), ("stream", stream)):
            if tap in self._wanted:
                row_of = self._rows[tap]
                observe(lambda x, tap=tap, row_of=row_of: self._slots.add(tap, key, row_of(x)), tensor)

    def _gain(self, tap: Kind, weight: Tensor) -> None:
        site = self._site(f"{tap} {self._calls.current}")
        self.norms[self._calls.current, site[1]] = None
        if tap in self._wanted:
            place = (self._calls.current, site[1])
            observe(lambda w: self._slots.put(tap, place, weight_row(tap, w)), weight)

    @guarded("the routing of a block")
    def _routed(self, site: Site) -> None:
        """What the routers of a block chose, once the block has run."""
        for rows in self.routers.take(site):
            for tap, row in rows.items():
                if tap in self._wanted:
                    self._slots.add(tap, site, row)

    def _note_untold(self, site: Site, rows: dict[str, Tensor]) -> None:
        """Say once which calls' queries or keys lead back to no projection."""
        for tap, what in (("query_proj", "queries"), ("key_proj", "keys")) if not self.compiled else ():
            if tap not in rows and tap in self._wanted:
                sites = self._untold.setdefault(tap, {})
                sites[site] = None
                more = f" and of {len(sites) - 1} more calls" if len(sites) > 1 else ""
                first = next(iter(sites))[0] or "the model"
                self.skipped[f"{tap}_norm"] = f"the {what} of {first}{more} cannot be followed back to one projection"

    def _unseen_softmax(self, why: str) -> None:
        """A softmax that is not read."""
        name = self._running
        if (self._inside or self._loose.site) and not any(name == seen for seen, _ in self.attention):
            self.skipped[name] = why

    def _attention_call(self, call: Call) -> None:
        self._attended = True
        name = self._running
        device = call.tensors[0].device.type
        cast = autocast_dtype(device)
        self.attention_call((name, self._site(f"attention {name}")[1]), call, cast)

    @guarded("an attention call")
    def attention_call(self, site: Site, call: Call, cast: torch.dtype | None) -> None:
        """An attention call, with the dtype that autocast takes it to."""
        if not self._wanted & OF_ATTENTION:
            return

        def record(*_: Tensor) -> None:
            try:
                parts = call.parts()
            except Exception as error:  # what a mask_mod or score_mod of the user's does is not foreseeable
                self.skipped[site[0]] = f"its mask or score_mod could not be evaluated ({type(error).__name__}: {error})"
                return
            for part in parts:
                rows = statistics(part, cast)
                for tap, row in rows.items():
                    self._slots.add(tap, site, row)
                self._note_untold(site, rows)
            self.attention[site] = None
            self.skipped.pop(site[0], None)

        observe(record, *call.tensors)
