"""Example inputs: the caller's, put where the model is, or some made up from its configuration or first parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

Call = tuple[tuple[Any, ...], dict[str, Any]]

_BATCH = 2
_LENGTHS = (16, 8)  # short enough for any table of positions, long enough for a window
_SIZES = (224, 32, 64, 128)
_SAMPLES = 3200  # of a waveform, .2 s at 16 kHz


def candidates(model: nn.Module, example_inputs: Any = None) -> Iterator[Call]:
    """Yield calls (args, kwargs) worth trying, the likeliest first.

    Args:
        model: the model.
        example_inputs: a tensor, a tuple or list of positional arguments, a dict of keyword arguments, or None.
    """
    if example_inputs is None:
        made = (_from_config(model), _from_parameters(model))
        yield from (_placed(model, call) for source in made for call in source)
        return
    if isinstance(example_inputs, Mapping):
        call: Call = ((), dict(example_inputs))
    else:
        call = (tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,), {})
    yield _placed(model, call)
    yield _placed(model, call, cast=True)


def _placed(model: nn.Module, call: Call, cast: bool = False) -> Call:
    """Put tensors on the model's device, and where asked in its dtype."""
    weights = [p for p in model.parameters() if p.is_floating_point()]
    if not weights:
        return call
    first = next((p for p in weights if p.is_meta), weights[0])

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        dtype = first.dtype if cast and leaf.is_floating_point() else leaf.dtype
        return leaf.detach().to(first.device, dtype)

    args, kwargs = tree_map(place, call)
    return args, kwargs


def _from_config(model: nn.Module) -> Iterator[Call]:
    """By a configuration object in the manner of Hugging Face: what its forward names and the sizes it tells."""
    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", None)
    if config is None or main is None:
        return
    accepted = inspect.signature(model.forward).parameters
    quiet = {"use_cache": False} if "use_cache" in accepted else {}
    mains = [main] if isinstance(main, str) else list(main)
    for length in _LENGTHS:
        known = _known_inputs(config, length)
        tokens, images = known["input_ids"][0], known["pixel_values"][0]
        seq2seq = "decoder_input_ids" in accepted and getattr(config, "is_encoder_decoder", False)
        beside = {"decoder_input_ids": tokens()} if seq2seq else {}
        if {"input_ids", "pixel_values"} <= accepted.keys() and _find(config, "vision_config") is not None:
            yield (), {"input_ids": tokens(), "pixel_values": _as_model(model, images()), **quiet}
        for makes in product(*(known.get(name, ()) for name in mains)):
            yield (), {n: _as_model(model, make()) for n, make in zip(mains, makes, strict=True)} | beside | quiet


def _known_inputs(config: Any, length: int) -> dict[str, list[Callable[[], Tensor]]]:
    """What goes by the usual names, in the layouts that are usual for it."""
    vocabulary = _find(config, "vocab_size") or 32
    side = _find(config, "image_size") or _SIZES[0]
    size = tuple(side) if isinstance(side, tuple | list) else (side, side)
    bins = _find(config, "input_feat_per_channel") or _find(config, "num_mel_bins") or 80
    frames = 2 * (_find(config, "max_source_positions") or 4 * length)
    spectrogram = (_find(config, "max_length") or frames, bins)
    return {
        "input_ids": [partial(_tokens, vocabulary, length)],
        "pixel_values": [partial(_floats, _find(config, "num_channels") or 3, *size)],
        "input_values": [partial(_floats, _SAMPLES), partial(_floats, *spectrogram)],
        "input_features": [partial(_floats, bins, frames), partial(_floats, frames, bins)],
    }


def _find(config: Any, name: str) -> Any:
    """A setting, looked for in the configurations of its parts as well."""
    parts = [getattr(config, part, None) for part in ("text_config", "vision_config", "encoder", "decoder")]
    values = (getattr(c, name, None) for c in (config, *parts) if c is not None)
    return next((v for v in values if v is not None), None)


def _from_parameters(model: nn.Module) -> Iterator[Call]:
    """By the first layers that have weights: an embedding takes tokens, a linear map its width, and so on."""
    required = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    seen: set[tuple[Any, ...]] = set()
    for module in model.modules():
        for key, make in _accepted_by(module):
            if key not in seen and len(seen) < 12:
                seen.add(key)
                yield tuple(_as_model(model, make()) for _ in range(max(1, len(required)))), {}


def _accepted_by(module: nn.Module) -> Iterator[tuple[tuple[Any, ...], Callable[[], Tensor]]]:
    """What a layer would take, as a key to tell equals by and a maker."""
    width = _width(module)
    for length in _LENGTHS:
        if isinstance(module, nn.Embedding):
            yield ("tokens", module.num_embeddings, length), partial(_tokens, module.num_embeddings, length)
        if width is not None:
            yield ("floats", width, length), partial(_floats, length, width)
    if isinstance(module, nn.Conv1d):
        yield ("wave", module.in_channels), partial(_floats, module.in_channels, _SAMPLES)
    if isinstance(module, nn.Conv2d):
        for size in _SIZES:
            yield ("image", module.in_channels, size), partial(_floats, module.in_channels, size, size)


def _width(module: nn.Module) -> int | None:
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.MultiheadAttention):
        return int(module.embed_dim)
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and len(module.normalized_shape) == 1:
        return int(module.normalized_shape[0])
    return None


def _as_model(model: nn.Module, tensor: Tensor) -> Tensor:
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    return tensor.to(first.dtype) if first is not None and tensor.is_floating_point() else tensor


def _tokens(vocabulary: int, length: int) -> Tensor:
    return torch.randint(0, vocabulary, (_BATCH, length), generator=torch.Generator().manual_seed(0))


def _floats(*shape: int) -> Tensor:
    return torch.randn(_BATCH, *shape, generator=torch.Generator().manual_seed(0))
