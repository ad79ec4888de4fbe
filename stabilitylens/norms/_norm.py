"""What every norm registers itself with, so that it is found by scanning this folder, and what it says of wrong input."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.kernels.rms_norm import Rounding
from stabilitylens.registry import Registry

NORMS: Registry[Callable[..., nn.Module]] = Registry("stabilitylens.norms")
Layer = TypeVar("Layer", bound=type[nn.Module])


def norm(name: str) -> Callable[[Layer], Layer]:
    """Register a layer that is made by ``layer(d, **options)`` and maps (…, d) to (…, d)."""
    return NORMS.named(name)


def make_norm(name: str, d: int, **options: Any) -> nn.Module:
    """Make a norm by its name, as ``make_norm("rms_norm", 512, eps=1e-5)``.

    Raises:
        BadInput: no norm has this name, or it takes no such option.
    """
    if name not in NORMS:
        raise BadInput(f"there is no norm called {name!r}; choose one of {', '.join(NORMS.names())}")
    return made(f"the norm {name!r}", NORMS[name], d, **options)


Made = TypeVar("Made", bound=nn.Module)


def made(what: str, make: Callable[..., Made], *args: Any, **options: Any) -> Made:
    """Makes a layer, after a look at whether it takes these options.

    Raises:
        BadInput: an option is missing, or there is none of this name.
    """
    try:
        inspect.signature(make).bind(*args, **options)
    except TypeError as error:
        raise BadInput(f"{what} can't be made so: {error}; it takes {', '.join(inspect.signature(make).parameters)}") from None
    return make(*args, **options)


def width(d: object) -> int:
    """Checks the size of a layer's last axis.

    Raises:
        BadInput: it is no whole number from 1.
    """
    if not isinstance(d, int) or isinstance(d, bool) or d < 1:
        raise BadInput(f"the width of a norm must be a whole number from 1, not {d!r}")
    return d


def chosen(value: str, allowed: Any, what: str) -> None:
    """Checks that one of a ``Literal``'s words was chosen.

    Raises:
        BadInput: it is none of them.
    """
    if value not in get_args(allowed):
        raise BadInput(f"{what} must be one of {', '.join(get_args(allowed))}, not {value!r}")


def rounding_mode(value: str) -> None:
    """Checks a rounding mode of RMSNorm; see :func:`chosen`."""
    chosen(value, Rounding, "rounding=")


def checked(x: Tensor, d: int) -> Tensor:
    """Checks that an input is of a floating-point dtype and of a layer's width.

    Raises:
        BadInput: it is not.
    """
    if not x.is_floating_point():
        raise BadInput(f"a norm needs floating-point input, not {x.dtype}: call .float() on it first")
    if not x.dim() or x.shape[-1] != d:
        raise BadInput(f"this norm is {d} wide, its input of shape {tuple(x.shape)} is not: the last axis must be the features")
    return x


def token_mask(mask: Tensor, rows: torch.Size) -> Tensor:
    """Checks that a mask has one truth value a token.

    Raises:
        BadInput: it has not.
    """
    if mask.dtype is not torch.bool or mask.shape != rows:
        raise BadInput(f"a mask needs one bool a token, here of shape {tuple(rows)}, not {mask.dtype} of shape {tuple(mask.shape)}")
    return mask


def finite_padding(x: Tensor, mask: Tensor) -> Tensor:
    """With 0 for NaN and infinity in padding, which would reach real tokens through gradients: 0 · NaN is NaN."""
    return torch.where(mask[..., None] | x.isfinite(), x, 0.0)
