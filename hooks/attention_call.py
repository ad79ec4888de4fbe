"""What an attention call is, whoever made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from stabilitylens.hooks.origins import Origin, Overwritten
from stabilitylens.hooks.sources import Place
from stabilitylens.kernels.attention_statistics import Visibility


@dataclass(frozen=True)
class Resolved:
    """An attention call as (batch, head, position, d) tensors.

    Attributes:
        logits: the softmax's input where it is known, shape (batch, head, query, column).
        first_key: the column of the first key there: those before it and behind the last key are sinks'.
        self_attention: query i and key i are known to be of one position.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    scale: float
    mask: Tensor | None = None
    causal: bool = False
    logits: Tensor | None = None
    query_proj: Tensor | None = None
    key_proj: Tensor | None = None
    soft_cap: float | None = None
    view: Visibility | None = None
    capped: bool = False
    first_key: int = 0
    self_attention: bool = False


@dataclass(frozen=True)
class Call:
    """One attention call: the tensors that it is about, and how to arrange them later."""

    tensors: tuple[Tensor, ...]
    resolve: Callable[[], Resolved | list[Resolved]]

    def parts(self) -> list[Resolved]:
        """The call, or each document of a packed one."""
        resolved = self.resolve()
        return resolved if isinstance(resolved, list) else [resolved]


def projected(origin: Origin | None, entered: Tensor, arrange: Callable[[Tensor], Tensor]) -> Tensor | None:
    """What a projection made of the rows of q or k, arranged as they are; None where that can't be told.

    Where nothing has changed them since, they are what entered.
    """
    if origin is None or entered.is_nested:
        return None
    if not origin.changed:
        return entered
    try:
        made = arrange(origin.values())
    except (Overwritten, RuntimeError, IndexError):
        return None
    return made if made.shape[:-1] == entered.shape[:-1] else None


def aligned(of_query: Place, of_key: Place, query: Tensor, key: Tensor) -> bool:
    """Whether query i and key i are known to be made of the same position: of the same tensor, in whole and in order.

    Args:
        of_query: where the queries come from.
        of_key: likewise.
        query: the queries, shape (batch, head, position, d).
        key: likewise.
    """
    if query.is_nested or key.is_nested or query.shape[2] != key.shape[2] or of_query.sources != of_key.sources:
        return False
    return all(place.rows in (None, x.shape[0] * x.shape[2]) for place, x in ((of_query, query), (of_key, key)))
