"""What tensors hold, kept while a model runs: of small ones a copy, of large ones a copy once something writes into them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from stabilitylens.hooks.anatomy.hidden import written_by

_PLAIN = (Tensor, nn.Parameter)
_SMALL = 1 << 20  # bytes of one that is copied at once, for what writes without saying so
_ALL_SMALL = 1 << 26


class Values(TorchDispatchMode):
    """Notices writes; a weight that nothing writes into costs no memory."""

    def __init__(self, parameters: Iterable[Tensor], buffers: Iterable[Tensor], others: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values: dict[int, _Value] = {}
        self._sharing: dict[int, list[_Value]] = defaultdict(list)
        for buffer in (b for b in buffers if not is_lazy(b)):
            self._keep(buffer).copy_now()
        for parameter in parameters:
            if type(parameter) is nn.Parameter:
                self._keep(parameter)
                if parameter.grad is not None and type(parameter.grad) is Tensor:
                    self._keep(parameter.grad)
        room = _ALL_SMALL
        for tensor in others:
            if type(tensor) in _PLAIN and id(tensor) not in self._values:
                size = tensor.numel() * tensor.element_size()
                value = self._keep(tensor)
                if size <= min(_SMALL, room):
                    value.copy_now()
                    room -= size

    def _keep(self, tensor: Tensor) -> _Value:
        if id(tensor) not in self._values:
            self._values[id(tensor)] = value = _Value(tensor)
            if value.place is not None:
                self._sharing[value.place].append(value)
        return self._values[id(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in written_by(func, args, kwargs):
                for value in self._sharing.get(_place(tensor) or 0, ()):
                    value.copy_now()
                    value.written = True
        return func(*args, **kwargs)

    def put_back(self) -> None:
        """Make all of them what they were."""
        with torch.no_grad():
            for value in self._values.values():
                value.put_back()


class _Value:
    """One tensor's memory, number of writes, gradient and whether it takes one."""

    def __init__(self, tensor: Tensor) -> None:
        self.written = False
        self.place = _place(tensor)
        self._tensor = tensor
        self._alias = tensor.detach()
        self._copy: Tensor | None = None
        self._version = None if tensor.is_inference() else tensor._version
        self._grad = tensor.grad if tensor.is_leaf else None
        self._requires_grad = tensor.requires_grad

    def copy_now(self) -> None:
        """Keep the numbers, where they are not kept yet."""
        if self._copy is None and not self._alias.is_meta:
            self._copy = self._alias.clone()

    def put_back(self) -> None:
        """Make it what it was."""
        tensor, alias = self._tensor, self._alias
        if type(tensor) in _PLAIN and _layout(tensor) != _layout(alias):
            tensor.data = alias
        if self._copy is not None and self._is_other(self._copy):
            alias.copy_(self._copy)
        if tensor.is_leaf:
            if tensor.requires_grad != self._requires_grad:
                tensor.requires_grad_(self._requires_grad)
            if tensor.grad is not self._grad:
                tensor.grad = self._grad
        if self._version is not None and tensor._version != self._version:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self._version,))

    def _is_other(self, copy: Tensor) -> bool:
        if self.written or (self._version is not None and self._tensor._version != self._version):
            return True
        return self.place is not None and not torch.equal(self._alias, copy)


def _place(tensor: Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata) if type(tensor) in _PLAIN else None
    except (RuntimeError, ValueError):  # sparse and other tensors without storage
        return None


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided or tensor.is_meta:
        return tuple(tensor.shape), tensor.dtype
    return tuple(tensor.shape), tensor.dtype, tensor.stride(), tensor.data_ptr()
