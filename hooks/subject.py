"""What is observed: a model's modules, blocks and trainable parameters by their canonical names."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from stabilitylens.hooks.anatomy.blocks import find_blocks
from stabilitylens.hooks.names import canonical_names
from stabilitylens.hooks.shares import is_spread, unreadable

_OBSERVED: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()

COMPILED_SENTENCE = (
    "the model was compiled before attach, and what is added later inside a compiled graph never runs, so only "
    "parameters, gradients and updates are observed: attach before torch.compile"
)


def is_compiled(model: nn.Module) -> bool:
    """Whether any part of a model has been handed to ``torch.compile``, which ignores hooks added later."""
    return any(
        getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod") for m in model.modules()
    )


class Subject:
    """The parts of one model.

    Attributes:
        names: canonical name of each module, of wrappers that share one the innermost; blocks: the repeated ones by name, in order.
        holders: the model itself and the modules between it and its blocks.
        parameters: the trainable ones, each once, by canonical name.
        unreadable: parameters that nothing can be said of, with the reason.
        sharded: some parameter is spread over processes, so that one of them alone knows no norm.
        apart: why the processes do not put their parts together; empty where they do.
        compiled: the model is compiled already, so that its forward can't be observed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.apart = model, ""
        canonical = canonical_names(model)
        innermost = {canonical[path]: module for path, module in model.named_modules()}
        self.names = {module: name for name, module in innermost.items()}
        self.compiled = is_compiled(model)
        self.blocks: dict[str, nn.Module] = dict(find_blocks(model))
        self.parameters = self.trainable()
        self.holders = [] if self.compiled else self._holders()
        first = next(model.parameters(), None)
        self.device = torch.device("cpu") if first is None else first.device

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that are trainable now and can be read, each once, by canonical name."""
        canonical = canonical_names(self.model)
        trainable = {canonical[path]: p for path, p in self.model.named_parameters() if p.requires_grad}
        self.unreadable = {name: why for name, p in trainable.items() if (why := unreadable(p))}
        self.sharded = any(map(is_spread, trainable.values()))
        return {name: p for name, p in trainable.items() if name not in self.unreadable}

    def _holders(self) -> list[nn.Module]:
        inside = set(self.blocks.values())
        holders = [self.model]
        for module in self.model.modules():
            if module is not self.model and module not in inside and inside & set(module.modules()):
                holders.append(module)
        return holders

    def claim(self, lens: Any) -> None:
        """Remember who observes the model."""
        _OBSERVED[self.model] = weakref.ref(lens)

    def release(self) -> None:
        """Forget who observed the model."""
        _OBSERVED.pop(self.model, None)


def observers() -> list[Any]:
    """Every lens that is attached now."""
    return [lens for lens in (reference() for reference in _OBSERVED.values()) if lens is not None]


def observer_of(model: nn.Module) -> Any:
    """The lens that observes a model already, or None."""
    lens = _OBSERVED.get(model)
    return None if lens is None else lens()
