"""FlashAttention's functions by their own signatures, computed by a formula: what a wheel for GPUs would do."""

from __future__ import annotations

import torch
from torch import Tensor


class _Kernel(torch.autograd.Function):
    """Hides from a mode what happens inside, as a kernel does."""

    @staticmethod
    def forward(ctx, q, k, v, weights):
        ctx.save_for_backward(v, weights)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    @staticmethod
    def backward(ctx, grad):
        v, weights = ctx.saved_tensors
        return None, None, torch.einsum("bhqk,bqhd->bkhd", weights, grad), None


def weights_of(q: Tensor, k: Tensor, scale, causal, window_size, softcap, alibi_slopes) -> Tensor:
    """The softmax over the keys in float64, shape (batch, head, query, key), and the logits before the soft-cap."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    logits = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * (q.shape[-1] ** -0.5 if scale is None else scale)
    raw = logits
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    i, j = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], torch.arange(k.shape[1])[None]
    if alibi_slopes is not None:
        logits = logits - alibi_slopes.double().reshape(-1, q.shape[2])[:, :, None, None] * (i - j).abs()
    left, right = window_size
    hidden = (j > i) & torch.tensor(causal)
    hidden = hidden | ((j < i - left) & torch.tensor(left >= 0)) | ((j > i + right) & torch.tensor(right >= 0))
    return logits.masked_fill(hidden, -torch.inf).softmax(-1), raw.masked_fill(hidden, -torch.inf)


def _attend(q, k, v, *options) -> Tensor:
    weights, _ = weights_of(q.detach(), k.detach(), *options)
    k_of_each_head = q.shape[2] // k.shape[2]
    return _Kernel.apply(q, k, v.repeat_interleave(k_of_each_head, 2), weights.to(q.dtype))


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    return _attend(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                              alibi_slopes=None, deterministic=False, return_attn_probs=False):
    return _attend(*qkv.unbind(2), softmax_scale, causal, window_size, softcap, alibi_slopes)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                             alibi_slopes=None, deterministic=False, return_attn_probs=False):
    return _attend(q, *kv.unbind(2), softmax_scale, causal, window_size, softcap, alibi_slopes)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    parts = []
    for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False):
        options = (softmax_scale, causal, window_size, softcap, alibi_slopes)
        parts.append(_attend(q[None, a:b], k[None, c:d], v[None, c:d], *options)[0])
    return torch.cat(parts)


FUNCTIONS = (flash_attn_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func, flash_attn_varlen_func)
