"""Tensors that are spread over processes: each keeps its shard, and torch.distributed.checkpoint writes and reads them."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from stabilitylens.errors import BadInput

#: the folder of the shards, inside an incident's
FOLDER = "sharded"
_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_NAMES = {("torch", "Size"), ("torch.serialization", "_get_layout")}
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")


def is_spread(tensor: Any) -> bool:
    """Whether it is a tensor of which a process holds a shard."""
    return hasattr(tensor, "placements") and hasattr(tensor, "_spec")


def shard_as(like: Any, local: Tensor) -> Any:
    """A shard on the host as a part of the whole that ``like`` is a part of."""
    from torch.distributed.tensor import DTensor

    return DTensor(local, like._spec, requires_grad=False)


def likes(places: Iterable[str], model: Mapping[str, Tensor], optimizers: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
    """The tensor of a live training that each place of a snapshot is laid out as.

    Args:
        places: as a snapshot names them.
        model: parameters and buffers by name.
        optimizers: the parameters of each.

    Raises:
        BadInput: it is not spread over processes.
    """
    found: dict[str, Any] = {}
    for place in places:
        kind, _, name = place.partition(".")
        found[place] = model[name] if kind in ("model", "gradient") else optimizers[int(kind.split()[1])][int(name.split(".")[0])]
        if not is_spread(found[place]):
            raise BadInput(f"{place} was spread over processes, and is not in this model; shard the model as it was, in as many processes")
    return found


def write_shards(folder: Path, shards: Mapping[str, Any]) -> None:
    """Write every process's shards; all of them have to come."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(dict(shards), checkpoint_id=str(folder / FOLDER))


def read_shards(folder: Path, shards: dict[str, Any]) -> None:
    """Fill shards with what was written; all processes have to come.

    Raises:
        BadInput: the description of the shards holds more than plain data, or they are not those of this model.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    check_description(folder / FOLDER / ".metadata")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(shards, checkpoint_id=str(folder / FOLDER))
    except Exception as error:
        raise BadInput(f"the shards in {folder / FOLDER} are not those of this model ({str(error).splitlines()[0]})") from error


class _Plain(pickle.Unpickler):
    """Builds nothing but the descriptions of shards, for torch reads theirs as a pickle without looking."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module in (*_MODULES, "torch") or (module, name) in _NAMES else None
        plain = isinstance(found, type) and found.__module__ == module and (is_dataclass(found) or issubclass(found, Enum))
        if plain or (module, name) in _NAMES or isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            return found
        if module.startswith("pathlib") and name in _PATHS:
            return PurePath
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def check_description(path: Path) -> None:
    """Raise where the description of shards would run anything.

    Raises:
        BadInput: it would, or it can't be read.
    """
    try:
        _Plain(io.BytesIO(path.read_bytes())).load()
    except Exception as error:
        raise BadInput(f"{path} can't be loaded as plain data: {error}") from error
