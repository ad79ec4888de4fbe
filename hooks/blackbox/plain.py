"""Turns what a loop hands over into plain data that is safe to keep and to load: tensors, numbers, text, containers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

#: bytes up to which a tensor on the host is copied; a larger one of torch's own memory is kept by reference, and its version watched
SMALL = 1 << 18
#: why what the loop has asked not to keep is left out
MASKED = "masked"
#: why a batch whose parts have no names is left out where fields are masked by name
NAMELESS = "its parts have no names, so that what mask= names can't be told: pass a function as mask=, or lens.batch() a dictionary"
#: how an array of NumPy is told from a tensor in a file
ARRAY = "__ndarray__"
_KINDS = (bool, int, float, complex, str, bytes)


class Keeping:
    """Keeps one thing, and says what of it could not be kept.

    Args:
        limit: bytes that it may take.
        hidden: names of fields that are left out.

    Attributes:
        size: bytes that are kept.
        left_out: what was not kept, by its place, and why.
    """

    def __init__(self, limit: int, hidden: frozenset[str] = frozenset()) -> None:
        self._limit, self._hidden = limit, hidden
        self._watched: list[tuple[str, Tensor, int]] = []
        self.size = 0
        self.left_out: dict[str, str] = {}

    def take(self, value: Any, place: str = "batch") -> Any:
        """The value as plain data, tensors on the host; None in place of what is not kept."""
        if value is None or isinstance(value, (torch.dtype, torch.device, torch.Size)):
            return value
        if type(value) in _KINDS:
            return value if self._fits(sys.getsizeof(value), place) else None
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if isinstance(value, np.ndarray):
            return self._array(value, place)
        if isinstance(value, np.generic):
            return self.take(value.item(), place)
        if isinstance(value, Mapping):
            return self._mapping(value, place)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return tuple(self._mapping(dict(zip(value._fields, value, strict=True)), place, gaps=True).values())
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and value[0] in self._hidden:  # a field and its value
            self.refuse(MASKED, f"{place}.{value[0]}")
            return None
        if isinstance(value, (list, tuple)) and all(type(v) in _KINDS for v in value):  # as a whole: a reason for each would take more
            plain = list(value) if isinstance(value, list) else tuple(value)
            return plain if self._fits(sys.getsizeof(value) + sum(map(sys.getsizeof, value)), place) else None
        if isinstance(value, (list, tuple)):
            taken = [self.take(v, f"{place}[{i}]") for i, v in enumerate(value)]
            return taken if isinstance(value, list) else tuple(taken)
        for kind in _KINDS:  # an enumeration of numbers, say
            if isinstance(value, kind):
                return self.take(cast(Any, kind)(value), place)
        self.refuse(f"it is a {type(value).__name__}, neither a tensor nor a plain container", place)
        return None

    def refuse(self, why: str, place: str = "batch") -> None:
        """Keep nothing of a thing, and say why."""
        self.left_out[place] = why

    def overwritten(self) -> dict[int, str]:
        """Tensors kept by reference that have been changed in place since: their place by identity."""
        return {id(t): place for place, t, version in self._watched if t._version != version}

    def _mapping(self, value: Mapping[Any, Any], place: str, gaps: bool = False) -> dict[Any, Any]:
        """The entries that may be kept; where ``gaps``, None in place of those that may not."""
        taken: dict[Any, Any] = dict.fromkeys(value) if gaps else {}
        for key, entry in value.items():
            if key in self._hidden:
                self.refuse(MASKED, f"{place}.{key}")
            elif isinstance(key, (str, int)):
                self.size += sys.getsizeof(key)
                taken[key] = self.take(entry, f"{place}.{key}")
            else:
                self.refuse(f"its key is a {type(key).__name__}", f"{place}.{key}")
        return taken

    def _fits(self, size: int, place: str) -> bool:
        if self.size + size > self._limit:
            left = max(self._limit - self.size, 0)
            self.refuse(f"its {size / 1e6:.1f} MB are more than the {left / 1e6:.1f} MB that max_bytes leaves", place)
            return False
        self.size += size
        return True

    def _tensor(self, value: Tensor, place: str) -> Tensor | None:
        if type(value) not in (Tensor, torch.nn.Parameter) or value.is_nested or value.device.type == "meta":
            self.refuse(f"it is a {type(value).__name__} that no other process could load", place)
            return None
        tensor, size = value.detach(), value.numel() * value.element_size()
        if not self._fits(size, place):
            return None
        if tensor.device.type != "cpu":
            return on_host(tensor)
        if size <= SMALL or tensor.layout is not torch.strided or tensor.is_inference() or shares_memory(tensor):
            return tensor.clone()
        self._watched.append((place, tensor, tensor._version))
        return tensor

    def _array(self, value: np.ndarray, place: str) -> dict[str, Tensor] | None:
        if value.dtype.kind not in "biufc":
            self.refuse(f"it is an array of {value.dtype}, not of numbers", place)
            return None
        return {ARRAY: torch.from_numpy(value.copy())} if self._fits(value.nbytes, place) else None


def nameless(value: Any) -> bool:
    """Whether it is a list or tuple of parts that no name tells apart."""
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and not all(isinstance(v, Mapping) for v in value)


def shares_memory(tensor: Tensor) -> bool:
    """Whether something else than torch, as NumPy, may write to its memory, which changes no version."""
    storage = tensor.untyped_storage()
    return not storage.resizable() and not storage.is_shared()  # what a loader's worker hands over is shared, and the loop's alone


def on_host(tensor: Tensor) -> Tensor:
    """A copy on the host that is there once the device has come so far; nothing waits for it."""
    pinned = tensor.device.type == "cuda"
    host = torch.empty_like(tensor, device="cpu", pin_memory=pinned) if tensor.layout is torch.strided else None
    return tensor.cpu() if host is None else host.copy_(tensor, non_blocking=pinned)


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same containers with each leaf replaced."""
    if isinstance(value, dict):
        return {key: mapped(entry, leaf) for key, entry in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(mapped(entry, leaf) for entry in value)
    return leaf(value)


def copied(value: Any) -> Any:
    """A tensor of its own; anything else as it is."""
    return value.clone() if isinstance(value, Tensor) else value


def own_storage(value: Any) -> Any:
    """A tensor without the rest of the storage that it is a view of, which a file would hold too."""
    if isinstance(value, Tensor) and value.layout is torch.strided and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def as_given(value: Any) -> Any:
    """What was kept, as the loop had it: arrays are arrays again, tensors copies that may be changed."""
    if isinstance(value, dict):
        return value[ARRAY].numpy().copy() if value.keys() == {ARRAY} else {k: as_given(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(as_given(v) for v in value)
    return copied(value)
