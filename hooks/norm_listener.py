"""Between the fused norms and the lens: rows go to the slots of the lens that observes the layer, if it samples now."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from stabilitylens.hooks.opaque import observe
from stabilitylens.hooks.subject import observers
from stabilitylens.hooks.taps import OF_FUSED_NORMS
from stabilitylens.kernels import moments, second_moments
from stabilitylens.kernels._byproducts import Tap, in_backward, listening

_BACKWARD = frozenset({"norm_input_grad", "norm_output_grad"})


class NormListener:
    """Told of one layer."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def _lens(self) -> tuple[Any, str] | None:
        """The lens that samples now what there is to see of the layer, and the layer's name in it."""
        module = self._module()
        for lens in observers() if module is not None else ():
            name = lens.subject.names.get(module)
            observed = in_backward() or lens._entry._open_at is not None or lens._taps.compiled
            asked = lens._wanted & (_BACKWARD if in_backward() else OF_FUSED_NORMS)
            if name is not None and asked and lens._wants_forward() and observed:
                return lens, name
        return None

    def wanted(self) -> bool:
        """Whether a lens samples this layer now."""
        return self._lens() is not None

    def add(self, tap: Tap, row: Tensor) -> None:
        """Into the slots, where a metric reads it; a failure is the lens' to report and stops nothing."""
        found = self._lens()
        if found is not None and tap in found[0]._wanted:
            lens, name = found
            try:
                lens._taps.norms[name, 0] = None
                lens._slots.add(tap, (name, 0), row)
            except Exception as error:
                lens.guard.failed("the statistics of a norm", error)


def tell_in_pytorch(layer: int, x: Tensor, y: Tensor) -> None:
    """The same rows where no kernel finds them on its way."""
    listener = None if in_backward() else listening(layer)
    if listener is None:
        return

    def forward(a: Tensor, b: Tensor) -> None:
        listener.add("norm_input", moments(a))
        listener.add("norm_output", moments(b))

    def backward(tap: Tap, grad: Tensor) -> None:
        observe(lambda g: listener.add(tap, second_moments(g)), grad)

    observe(forward, x.detach(), y.detach())
    if y.requires_grad:
        y.register_hook(lambda grad: backward("norm_output_grad", grad))
