"""What is observed: a model's modules, blocks and trainable parameters by their canonical names."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stabilitylens.hooks.anatomy.structure import Structure
from stabilitylens.hooks.layers import find_layers
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
        names: canonical name of each module, of wrappers that share one the innermost.
        blocks: the repeated layers by name, in order, each with the modules that it is made of.
        holders: the model itself and the modules between it and its blocks.
        parameters: the trainable ones, each once, by canonical name.
        tied: further names of parameters, each with the name under which it is counted.
        unreadable: parameters that nothing can be said of, with the reason.
        sharded: some parameter is spread over processes, so that one of them alone knows no norm.
        apart: why the processes do not put their parts together; empty where they do.
        compiled: the model is compiled already, so that its forward can't be observed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.apart = model, ""
        self.names: dict[nn.Module, str] = {}
        self.blocks: dict[str, tuple[nn.Module, ...]] = {}
        self.renew()
        self.compiled = is_compiled(model)
        self.parameters = self.trainable()
        self.holders = [] if self.compiled else self._holders()
        first = next(model.parameters(), None)
        self.device = torch.device("cpu") if first is None else first.device

    def renew(self) -> list[str]:
        """Take in what the model is made of now; names of the modules that are new."""
        canonical = canonical_names(self.model)
        innermost = {canonical[path]: module for path, module in self.model.named_modules()}
        known = set(self.names.values())
        for mine, now in ((self.names, {module: name for name, module in innermost.items()}), (self.blocks, find_layers(self.model))):
            mine.clear()
            mine.update(now)  # type: ignore[arg-type]
        return [name for name in innermost if name not in known]

    def keeps(self, parameters: Mapping[str, nn.Parameter]) -> bool:
        """Whether parameters still stand where they were, as far as they can be put elsewhere."""
        homes = ((self._homes.get(name), p) for name, p in parameters.items())
        return self.sharded or all(home is None or home[0]._parameters.get(home[1]) is p for home, p in homes)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that are trainable now and can be read, each once, by canonical name."""
        canonical = canonical_names(self.model)
        modules = ((path, m) for path, m in self.model.named_modules())
        self._homes = {canonical[f"{path}.{leaf}".lstrip(".")]: (m, leaf) for path, m in modules for leaf in m._parameters if m._parameters[leaf] is not None}
        trainable = {canonical[path]: p for path, p in self.model.named_parameters() if p.requires_grad}
        names = {p: canonical[path] for path, p in self.model.named_parameters()}
        every = ((canonical[path], names[p]) for path, p in self.model.named_parameters(remove_duplicate=False) if p.requires_grad)
        self.tied = tuple(dict.fromkeys((other, name) for other, name in every if other != name))
        self.unreadable = {name: why for name, p in trainable.items() if (why := unreadable(p))}
        self.sharded = any(map(is_spread, trainable.values()))
        return {name: p for name, p in trainable.items() if name not in self.unreadable}

    @property
    def callable_blocks(self) -> dict[str, nn.Module]:
        """Those of the blocks that are one module each, which runs itself."""
        lone = {name: parts[0] for name, parts in self.blocks.items() if len(parts) == 1}
        return {name: m for name, m in lone.items() if Structure().runs(m)}

    def _holders(self) -> list[nn.Module]:
        inside = {module for parts in self.blocks.values() for module in parts}
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
