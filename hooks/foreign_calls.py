"""From the arguments of an attention function that is no torch function to the attention call that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from stabilitylens.hooks.attention_call import Call, Resolved, aligned, projected
from stabilitylens.hooks.origins import OriginWatch
from stabilitylens.hooks.visible import combined, of_block_mask, score_mod_on, slopes_bias, window
from stabilitylens.kernels.attention_statistics import Visibility

Layout = Callable[[Tensor], Tensor]


class Operands:
    """q, k and v as an attention function was given them, perhaps as parts of one tensor.

    Args:
        origins: knows what their projections made.
        tensors: three of them.
        layouts: lay each out as (…, head, position, d).
    """

    def __init__(self, origins: OriginWatch, tensors: tuple[Tensor, ...], layouts: tuple[Layout, ...]) -> None:
        self.tensors, self._layouts = tensors, layouts
        self._origins = [origins.get(x) for x in tensors[:2]]
        self._places = origins.place(tensors[0]), origins.place(tensors[1])

    @property
    def length(self) -> tuple[int, int]:
        """How many queries and keys there are."""
        q, k = (lay(x.detach()) for lay, x in zip(self._layouts, self.tensors[:2], strict=False))
        return q.shape[-2], k.shape[-2]

    def resolved(self, scale: Any, narrow: tuple[Layout, Layout] | None = None, **rest: Any) -> Resolved:
        """The call, or one document of it.

        Args:
            scale: of the logits; None for the usual.
            narrow: takes a document's rows of q, and those of k and v.
        """
        of_q, of_k = narrow or (_same, _same)
        layouts = [_then(lay, cut) for lay, cut in zip(self._layouts, (of_q, of_k, of_k), strict=True)]
        q, k, v = (lay(x.detach()) for lay, x in zip(layouts, self.tensors, strict=True))
        made = [projected(o, x, lay) for o, x, lay in zip(self._origins, (q, k), layouts[:2], strict=True)]
        factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
        same = aligned(*self._places, q, k)
        return Resolved(q, k, v, factor, query_proj=made[0], key_proj=made[1], self_attention=same, **rest)


def _with_sinks(view: Visibility, given: dict[str, Any]) -> Visibility:
    """With the logit of each head's sink, where the function is given any; by the names that kernels and transformers use."""
    sinks = next((given[n] for n in ("s_aux", "learnable_sink", "sinks") if isinstance(given.get(n), Tensor)), None)
    return view if sinks is None or sinks.dim() != 1 else replace(view, sinks=sinks.detach().reshape(1, -1, 1, 1))


def _then(first: Layout, second: Layout) -> Layout:
    return lambda x: second(first(x))


def _same(x: Tensor) -> Tensor:
    return x


def flex_call(origins: OriginWatch, given: dict[str, Any]) -> Call:
    """``flex_attention``, whose ``score_mod`` and ``block_mask`` are evaluated key by key."""
    tensors = given["query"], given["key"], given["value"]
    score_mod, block_mask, operands = given.get("score_mod"), given.get("block_mask"), Operands(origins, tensors, (_same,) * 3)

    def resolve() -> Resolved:
        queries, keys = operands.length
        seen = None if block_mask is None else of_block_mask(block_mask, queries, keys, tensors[0].device)
        modify = None if score_mod is None else score_mod_on(score_mod)
        return operands.resolved(given.get("scale"), view=Visibility(seen, modify=modify))

    return Call(tensors, resolve)


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(-3, -2)


def _one_of(i: int) -> Layout:
    return lambda x: x.select(-3, i).transpose(-3, -2)


def _flash_operands(origins: OriginWatch, given: dict[str, Any]) -> Operands:
    if "qkv" in given:
        return Operands(origins, (given["qkv"],) * 3, tuple(map(_one_of, range(3))))
    if "kv" in given:
        return Operands(origins, (given["q"], given["kv"], given["kv"]), (_heads_first, _one_of(0), _one_of(1)))
    return Operands(origins, (given["q"], given["k"], given["v"]), (_heads_first,) * 3)


def flash_call(origins: OriginWatch, given: dict[str, Any]) -> Call:
    """A function of FlashAttention: causal and windows aligned bottom right, soft-cap, slopes, packed documents."""
    operands = _flash_operands(origins, given)
    left, right = given.get("window_size") or (-1, -1)
    slopes, device = given.get("alibi_slopes"), operands.tensors[0].device
    starts = given.get("cu_seqlens_q", given.get("cu_seqlens"))

    def resolved(queries: int, keys: int, document: int = 0, narrow: tuple[Layout, Layout] | None = None) -> Resolved:
        seen = window(queries, keys, causal=bool(given.get("causal")), left=left, right=right, device=device)
        own = slopes[document] if slopes is not None and slopes.dim() == 2 and starts is not None else slopes
        bias = None if own is None else slopes_bias(own, queries, keys)
        cap = given.get("softcap") or None
        view = _with_sinks(Visibility(seen, bias), given)
        return operands.resolved(given.get("softmax_scale"), narrow, view=view, soft_cap=cap)

    def documents() -> list[Resolved]:
        assert starts is not None
        of_queries, of_keys = starts.tolist(), given.get("cu_seqlens_k", starts).tolist()
        spans = zip(of_queries, of_queries[1:], of_keys, of_keys[1:], strict=False)
        return [
            resolved(b - a, d - c, i, (_rows(a, b), _rows(c, d))) for i, (a, b, c, d) in enumerate(spans) if b > a and d > c
        ]

    return Call(tuple(dict.fromkeys(operands.tensors)), documents if starts is not None else lambda: resolved(*operands.length))


def _rows(start: int, stop: int) -> Layout:
    return lambda x: x[None, :, start:stop]


def registered_call(origins: OriginWatch, module: nn.Module, given: dict[str, Any]) -> Call:
    """A function of the attention registry of transformers, by what it is given: (batch, head, position, d) and a mask."""
    tensors, mask = (given["query"], given["key"], given["value"]), given.get("attention_mask")
    operands = Operands(origins, tensors, (_same,) * 3)
    causal = given.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    left = given.get("sliding_window") or 0

    def resolve() -> Resolved:
        (queries, keys), device = operands.length, tensors[0].device
        cap, scale = given.get("softcap") or None, given.get("scaling")
        view = Visibility()
        if hasattr(mask, "mask_mod"):
            view = Visibility(of_block_mask(mask, queries, keys, device))
        elif isinstance(mask, Tensor) and mask.dim() > 2:
            view = Visibility.of(mask[..., :keys], False)
        else:
            padding = None if mask is None else mask[:, None, None, -keys:].bool()
            around = window(queries, keys, causal=causal and queries > 1, left=left - 1, device=device)
            view = Visibility(combined(padding, around))
        if given.get("position_bias") is not None:
            bias = given["position_bias"].detach()
            view = Visibility(view.visible, bias if view.bias is None else view.bias + bias)
        return operands.resolved(scale, view=_with_sinks(view, given), soft_cap=cap)

    return Call(tensors, resolve)
