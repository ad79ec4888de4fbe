"""In the place of torchvision, which timm and vit-pytorch import and which has no build for every torch.

They read pictures with it; their models compute nothing by it.
"""

import sys
from contextlib import contextmanager
from types import ModuleType
from unittest import mock

from torch import nn


class _Named(type(nn.Module)):
    """A class with every attribute that is asked for: constants, by name."""

    def __getattr__(cls, name):  # noqa: B902
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Module(ModuleType):
    __path__ = []
    __version__ = "0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        thing = _Named(name, (nn.Module,), {})
        setattr(self, name, thing)
        return thing


@contextmanager
def stand_in():
    """Let ``import torchvision`` and its parts succeed, for as long as others import what needs it.

    It does not stay: who looks for torchvision later is to find that there is none.
    """
    names = ["torchvision", "torchvision.datasets", "torchvision.ops", "torchvision.ops.misc", "torchvision.utils"]
    names += ["torchvision.transforms", "torchvision.transforms.functional", "torchvision.models"]
    names += ["torchvision.models.feature_extraction"]
    modules = {name: _Module(name) for name in names}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    with mock.patch.dict(sys.modules, modules):
        yield
        imported = {name: module for name, module in sys.modules.items() if name not in modules}
    sys.modules.update(imported)
