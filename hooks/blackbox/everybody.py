"""What the processes that replay together tell each other."""

from __future__ import annotations

from typing import Any, TypeVar

from stabilitylens.hooks.distributed import distributed

T = TypeVar("T")


def gathered(own: T) -> list[T]:
    """What each process gives, in the order of their ranks; all of them have to ask. A list of one where there is one process."""
    dist = distributed()
    if dist is None:
        return [own]
    given: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(given, own)
    return given
