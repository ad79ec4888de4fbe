"""Canonical names: what a module or parameter is called in the user's own code, whatever wraps it."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

_PRIVATE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_HOLDERS = (DataParallel, DistributedDataParallel, AveragedModel)


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Map each path of ``named_modules``, ``named_parameters`` and ``named_buffers`` to its canonical name.

    Steps into wrappers (``module``, ``_orig_mod``, ``_fsdp_wrapped_module``, ``_checkpoint_wrapped_module``,
    ``base_model.model``) are left out wherever they stand; an attribute of the user's own that happens to bear such a
    name stays. Shared modules and tied parameters have an entry for each of their paths.

    Args:
        model: any module.

    Returns:
        A dictionary from path to canonical name; ``""`` is the model itself.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    names = {"": ""}
    for path, module in modules.items():
        if path:
            parent, _, step = path.rpartition(".")
            names[path] = names[parent] if _wraps(modules, parent, step) else _join(names[parent], step)
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        names.update({_join(path, leaf): _join(names[path], leaf) for leaf, _ in own})
    return names


def _wraps(modules: dict[str, nn.Module], parent: str, step: str) -> bool:
    if step in _PRIVATE:
        return True
    holder = modules[parent]
    if step == "module":
        return isinstance(holder, _HOLDERS) or _forwards_attributes(holder)
    if step == "base_model":
        return _is_adapter(holder)
    above, _, last = parent.rpartition(".")
    return step == "model" and last == "base_model" and _is_adapter(modules[above])


def _is_adapter(module: nn.Module) -> bool:
    """Whether ``module.base_model.model`` is the wrapped model, as in adapter libraries."""
    inner = module._modules.get("base_model")
    return inner is not None and "model" in inner._modules and _forwards_attributes(module)


def _forwards_attributes(module: nn.Module) -> bool:
    """Whether attribute look-ups fall through to what it wraps: the mark of a wrapper that is not PyTorch's own."""
    return type(module).__getattr__ is not nn.Module.__getattr__


def _join(prefix: str, step: str) -> str:
    return f"{prefix}.{step}" if prefix else step
