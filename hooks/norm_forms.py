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

from stabilitylens.hooks.norm_listener import tell_in_pytorch
from stabilitylens.kernels.layer_norm import layer_norm
from stabilitylens.kernels.rms_norm import Rounding, rms_norm, rms_norm_reference

#: x, weight, bias, eps (None where the layer leaves it to PyTorch)
Formula = Callable[[Tensor, Tensor | None, Tensor | None, float | None], Tensor]


#: what ``F.normalize`` divides by at least; squared and added under the root it does the same but for tokens shorter than 1e-8
LEAST_NORM = 1e-12


def _dtypes(*tensors: Tensor | None) -> set[torch.dtype]:
    return {t.dtype for t in tensors if t is not None}


def _always(x: Tensor, w: Tensor | None) -> bool:
    return True


def _only_fp32(x: Tensor, w: Tensor | None) -> bool:
    """``F.normalize`` rounds the norm and each product in 16 bits, where the kernels compute in fp32."""
    return _dtypes(x, w) == {torch.float32}


def _one_dtype(x: Tensor, w: Tensor | None) -> bool:
    """T5's norm returns the dtype of a 16-bit weight, and of x in another dtype rounds nothing before an fp32 weight."""
    return (x if w is None else w).dtype is x.dtype and (w is not None or x.dtype is torch.float32)


@dataclass(frozen=True)
class Form:
    """One way of writing a norm.

    Attributes:
        formula: in plain PyTorch.
        kind: the kernel: ``layer``, or RMSNorm in a rounding mode.
        one_more: the layer's weight is the gain less 1.
        usual_eps: where the layer states none.
        cast: whether autocast on a GPU has it compute in fp32 and return it, since it calls PyTorch's own norm on its input.
        rounds_alike: whether the kernel rounds as the formula for these dtypes; where not, the formula itself runs.
    """

    formula: Formula
    kind: Rounding | str
    one_more: bool = False
    with_eps: bool = True
    usual_eps: float = 1e-6
    cast: bool = False
    rounds_alike: Callable[[Tensor, Tensor | None], bool] = _always

    def launch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float | None, layer: int) -> Tensor:
        """The same by the kernels that are chosen for the device, with the dtype and the rounding of the formula."""
        widened = self.kind != "layer" and bias is not None and bias.dtype is not x.dtype
        if widened or not self.rounds_alike(x, weight):
            return self.in_pytorch(x, weight, bias, eps, layer)
        if not self.with_eps:
            eps = LEAST_NORM**2 / x.shape[-1]
        eps = self.usual_eps if eps is None else eps
        if self.kind != "layer":
            return rms_norm(x, weight, bias, eps, self.kind, layer=layer, cast=self.cast)  # type: ignore[arg-type]
        weight = weight + 1 if self.one_more and weight is not None else weight
        if not self.cast and _dtypes(weight, bias) != {x.dtype}:
            weight, bias = _wide(weight), _wide(bias)
        return layer_norm(x, weight, bias, eps, layer=layer, cast=self.cast)

    def in_pytorch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float | None, layer: int) -> Tensor:
        """The same by the formula; whoever listens to the layer is told."""
        y = self.formula(x, weight, bias, eps)
        if not torch.compiler.is_compiling():
            tell_in_pytorch(layer, x, y)
        return y


def _wide(p: Tensor | None) -> Tensor | None:
    return None if p is None else p.float()


def _layer(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5 if eps is None else eps)


def _layer_wide(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float | None) -> Tensor:
    return F.layer_norm(x.to(torch.float32), (x.shape[-1],), _wide(w), _wide(b), 1e-5 if eps is None else eps).to(x.dtype)


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
    "layer": Form(_layer, "layer", usual_eps=1e-5, cast=True),
    "rms_llama": Form(_rms("llama"), "llama"),
    "rms_gemma": Form(_rms("gemma"), "gemma"),
    "rms_fp32": Form(_rms("fp32"), "fp32"),
    # PyTorch takes the eps of what it computes in, fp32 also of 16 bits
    "rms_torch": Form(_torch_rms, "fp32", usual_eps=torch.finfo(torch.float32).eps, cast=True),
    "rms_t5": Form(_t5, "llama", rounds_alike=_one_dtype),
    "layer_one_more": Form(_layer_one_more, "layer", one_more=True, usual_eps=1e-5, cast=True),
    "layer_wide": Form(_layer_wide, "layer", usual_eps=1e-5),
    "layer_spelled_out": Form(_layer_spelled_out, "layer", usual_eps=1e-5),
    "unit": Form(_unit(False), "fp32", with_eps=False, rounds_alike=_only_fp32),
    "unit_one_more": Form(_unit(True), "gemma", with_eps=False, rounds_alike=_only_fp32),
}
