"""What this process holds of the model: which part of each parameter, whose data, which stage."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ZERO3 = "DeepSpeed ZeRO-3 keeps it in partitions of its own, which only its own accessors read"
ZERO = "DeepSpeed ZeRO keeps gradients and optimizer state in flat buffers of its own"
FLAT = "FSDP1 keeps it in a flat parameter (use_orig_params=False), which has no layers"


@dataclass(frozen=True)
class Share:
    """A process's share of a parameter.

    Attributes:
        group: the ranks that the parameter is spread over; the process itself where it is a plain tensor.
        part: which of the parts; ranks with the same part hold replicas of it. Empty for the whole.
    """

    group: tuple[int, ...]
    part: tuple[int, ...] = ()


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, or its shard.

    Raises:
        ValueError: it is a sum that has yet to be taken over processes, of which a part says nothing.
    """
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor
    if any(p.is_partial() for p in placements):
        raise ValueError("it is a sum that has yet to be taken over processes")
    return tensor.detach().to_local()  # type: ignore[attr-defined, no-any-return]


def part_of(gradient: Tensor, parameter: Tensor) -> Tensor | None:
    """A process's share of a gradient, laid out as its share of the parameter; None where that takes communication."""
    laid, wanted = getattr(gradient, "placements", None), getattr(parameter, "placements", None)
    if laid is None or laid == wanted:
        return gradient if laid is None else local(gradient) if not any(p.is_partial() for p in laid) else None
    if wanted is None or any(not has.is_replicate() for has, want in zip(laid, wanted, strict=True) if has != want):
        return None
    return gradient.detach().redistribute(placements=wanted).to_local()  # type: ignore[attr-defined, no-any-return]


def first_row(parameter: Tensor) -> int:
    """The place in the whole of the first row that a process holds of a parameter."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    placements = parameter.placements  # type: ignore[attr-defined]
    return int(compute_local_shape_and_global_offset(parameter.shape, mesh, placements)[1][0])


def summand_of(gradient: Tensor, parameter: Tensor) -> Tensor | None:
    """What a process adds to the gradient of a parameter that is whole on each of them; None where it is no such sum."""
    laid, wanted = getattr(gradient, "placements", ()), getattr(parameter, "placements", ())
    whole = bool(wanted) and all(p.is_replicate() for p in wanted)
    if not whole or not all(p.is_replicate() or (p.is_partial() and p.reduce_op == "sum") for p in laid):
        return None
    at = gradient.device_mesh.get_coordinate()  # type: ignore[attr-defined]
    mine = all(c == 0 for c, p in zip(at, laid, strict=True) if p.is_replicate())
    part: Tensor = gradient.detach()._local_tensor  # type: ignore[attr-defined]
    return part if mine else torch.zeros_like(part)


def unreadable(parameter: nn.Parameter) -> str:
    """Why nothing can be said of a parameter from what processes hold of it; empty where something can."""
    if hasattr(parameter, "ds_id"):
        return ZERO3
    if getattr(parameter, "_hp_mapping", None) is not None:
        return ZERO
    if getattr(parameter, "_is_flat_param", False) or type(parameter).__name__ == "FlatParameter":
        return FLAT
    return ""


def fsdp1_modules(model: nn.Module) -> list[Any]:
    """Modules wrapped by the first FSDP."""
    module = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    return [] if module is None else [m for m in model.modules() if isinstance(m, module.FullyShardedDataParallel)]


def _ranks_of(group: Any) -> tuple[int, ...]:
    return tuple(sys.modules["torch.distributed"].get_process_group_ranks(group))


class Shares:
    """Looks up shares; made when every wrapper is in place."""

    def __init__(self, model: nn.Module, rank: int) -> None:
        self._model, self._rank = model, rank
        self._flat: dict[int, tuple[int, ...]] = {}
        for unit in fsdp1_modules(model):
            if unit.sharding_strategy.name != "NO_SHARD":
                for parameter in unit.module.parameters():  # inner units come last and have the last word
                    self._flat[id(parameter)] = _ranks_of(unit.process_group)

    def of(self, parameter: nn.Parameter) -> Share:
        """This process's share of a parameter."""
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            at = mesh.get_coordinate() or []
            sharded = [not p.is_replicate() for p in parameter.placements]  # type: ignore[attr-defined]
            part = tuple(c for c, s in zip(at, sharded, strict=True) if s)
            return Share(tuple(mesh.mesh.flatten().tolist()), part)
        group = self._flat.get(id(parameter))
        return Share((self._rank,)) if group is None else Share(group, (group.index(self._rank),))

    def data(self) -> tuple[int, ...]:
        """The ranks that train the same part of the model on other data; empty where nothing tells."""
        found: set[int] = set()
        fsdp2 = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
        for module in self._model.modules():
            if isinstance(module, DistributedDataParallel):
                found.update(_ranks_of(module.process_group))
            state = fsdp2._get_module_fsdp_state(module) if fsdp2 is not None else None
            for group in getattr(state, "_fsdp_param_groups", ()):
                found.update(_data_of_mesh(group.mesh_info))
        for unit in fsdp1_modules(self._model):
            found.update(_ranks_of(unit.process_group))
            found.update(range(sys.modules["torch.distributed"].get_world_size()) if _is_hybrid(unit) else ())
        return tuple(sorted(found))

    def pipeline(self) -> tuple[int | None, int]:
        """The index of the pipeline stage that runs the model and the number by which the schedule divides gradients.

        None and 1 where torch's own pipeline does not run it.
        """
        of_stages, of_schedules = (sys.modules.get(f"torch.distributed.pipelining.{n}") for n in ("stage", "schedules"))
        if of_stages is None or of_schedules is None:
            return None, 1
        objects = gc.get_objects()
        stages = [o for o in objects if isinstance(o, of_stages._PipelineStageBase) and self._runs(o)]
        schedules = [o for o in objects if isinstance(o, of_schedules._PipelineSchedule) and o.scale_grads]
        mine = [s for s in schedules for stage in getattr(s, "_stages", (getattr(s, "_stage", None),)) if stage in stages]
        return min((s.stage_index for s in stages), default=None), max((s._n_microbatches for s in mine), default=1)

    def _runs(self, stage: Any) -> bool:
        return stage.submod is self._model or any(m is self._model for m in stage.submod.modules()) or any(
            m is stage.submod for m in self._model.modules()
        )  # fmt: skip


def _data_of_mesh(info: Any) -> tuple[int, ...]:
    """Ranks of the dimensions of a mesh over which FSDP2 shards or replicates."""
    return tuple(info.mesh.mesh.flatten().tolist())


def _is_hybrid(unit: Any) -> bool:
    return "HYBRID" in unit.sharding_strategy.name


def is_rehearsal() -> bool:
    """Whether torch's pipeline is running a stage on made-up data to learn the shapes of its outputs."""
    if "torch.distributed.pipelining.stage" not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_forward_metadata_inference":
            return True
        frame = frame.f_back
    return False


def is_spread(parameter: nn.Parameter) -> bool:
    """Whether this process holds only a part of a parameter, or none of it."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        return bool(mesh.size() > 1)
    return bool(unreadable(parameter)) or parameter.numel() == 0
