"""The ways in which libraries write LayerNorm and RMSNorm, operation by operation, and the kernel for each.

Two ways may agree in fp32 and differ in bf16, or in their gradients' last bits; each is kept as it is, so
that what stands in for a layer gives its results to the bit in plain PyTorch, and in its rounding mode on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stabilitylens.kernels.layer_norm import layer_norm
from stabilitylens.kernels.rms_norm import Rounding, rms_norm, rms_norm_reference

#: x, weight, bias, eps (None where the layer leaves it to PyTorch)
Formula = Callable[[Tensor, Tensor | None, Tensor | None, float | None], Tensor]


@dataclass(frozen=True)
class Form:
    """One way of writing a norm.

    Attributes:
        formula: in plain PyTorch.
        kind: the kernel: ``layer``, or RMSNorm in a rounding mode.
        one_more: the layer's weight is the gain less 1.
    """

    formula: Formula
    kind: Rounding | str
    one_more: bool = False
    with_eps: bool = True

    def launch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float | None, layer: int) -> Tensor:
        """The same by the kernels that are chosen for the device."""
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        if self.kind == "layer":
            gain = weight + 1 if self.one_more and weight is not None else weight
            return layer_norm(x, gain, bias, eps, layer=layer)
        return rms_norm(x, weight, bias, eps, self.kind, layer=layer)  # type: ignore[arg-type]


def _layer(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5 if eps is None else eps)


def _layer_wide(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
    wide_w, wide_b = (None if t is None else t.float() for t in (w, b))
    return F.layer_norm(x.to(torch.float32), (x.shape[-1],), wide_w, wide_b, 1e-5 if eps is None else eps).to(x.dtype)


def _layer_one_more(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), None if w is None else w + 1, b, 1e-5 if eps is None else eps)


def _layer_spelled_out(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
    h = x.to(torch.float32)
    mean = h.mean(-1, keepdim=True)
    variance = (h - mean).pow(2).mean(-1, keepdim=True)
    h = (h - mean) * torch.rsqrt(variance + (1e-5 if eps is None else eps))
    h = h if w is None else w.to(torch.float32) * h
    return (h if b is None else h + b).to(x.dtype)


def _torch_rms(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
    out = F.rms_norm(x, (x.shape[-1],), w, eps)
    return out if b is None else out + b


def _t5(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
    h = x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + (1e-6 if eps is None else eps))
    if w is None:
        return h
    return w * (h.to(w.dtype) if w.dtype in (torch.float16, torch.bfloat16) else h)


def _rms(rounding: Rounding) -> Formula:
    def formula(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
        return rms_norm_reference(x, w, b, 1e-6 if eps is None else eps, rounding)

    return formula


def _unit(one_more: bool) -> Formula:
    def formula(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
        out: Tensor = F.normalize(x, dim=-1) * x.shape[-1] ** 0.5
        return out if w is None else out * (w + (1.0 if one_more else 0.0))

    return formula


FORMS: dict[str, Form] = {
    "layer": Form(_layer, "layer"),
    "rms_llama": Form(_rms("llama"), "llama"),
    "rms_gemma": Form(_rms("gemma"), "gemma"),
    "rms_fp32": Form(_rms("fp32"), "fp32"),
    "rms_torch": Form(_torch_rms, "fp32"),
    "rms_t5": Form(_t5, "llama"),
    "layer_one_more": Form(_layer_one_more, "layer", one_more=True),
    "layer_wide": Form(_layer_wide, "layer"),
    "layer_spelled_out": Form(_layer_spelled_out, "layer"),
    "unit": Form(_unit(False), "fp32", with_eps=False),
    "unit_one_more": Form(_unit(True), "gemma", with_eps=False),
}
