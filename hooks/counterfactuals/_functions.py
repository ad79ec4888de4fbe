"""Has torch's functions do something else while a trial runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stabilitylens.hooks.functions import Function, _transparent

#: given the function and its arguments, returns what is to come of it
Instead = Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]
#: how scaled dot-product attention names its arguments in order
ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class Around(TorchFunctionMode):
    """Calls what stands for a function in its place.

    ``F.multi_head_attention_forward`` hides its body from a mode, so a copy of it runs that does the same operations
    with the check for overrides switched off.

    Args:
        instead: by function.
        otherwise: for all other functions; None calls them as they are.
    """

    def __init__(self, instead: Mapping[Function, Instead], otherwise: Instead | None = None) -> None:
        super().__init__()
        self._instead, self._otherwise = instead, otherwise

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _transparent(F.multi_head_attention_forward)(*args, **kwargs)  # type: ignore[arg-type]
        instead = self._instead.get(func, self._otherwise)
        return func(*args, **kwargs) if instead is None else instead(func, args, kwargs)


def mapped_tensors(value: Any, leaf: Callable[[Tensor], Any]) -> Any:
    """Arguments of a function with every tensor replaced."""
    if isinstance(value, Tensor):
        return leaf(value)
    if isinstance(value, dict):
        return {key: mapped_tensors(entry, leaf) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped_tensors(entry, leaf) for entry in value)
    return value
