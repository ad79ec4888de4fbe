"""Where a measurement comes from: the day, the machine, and the versions of what it was made with."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stabilitylens import __version__

#: with another version of one of these a measurement may come out otherwise, and is made again
DECIDING = ("torch", "numpy")


@dataclass(frozen=True)
class Origin:
    """Days (UTC), machines and versions that measurements were made on and with; of one measurement there is one of each."""

    dates: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def now(cls, device: torch.device) -> Origin:
        """Of what is measured now, on this machine."""
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
        if device.type == "cuda":
            machine = f"{torch.cuda.get_device_name(device)}, {machine}"
        made = {"stabilitylens": __version__, "torch": torch.__version__, "numpy": np.__version__, "Python": platform.python_version()}
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return cls((today,), (machine,), {name: (str(version),) for name, version in made.items()})

    @classmethod
    def over(cls, origins: Iterable[Origin]) -> Origin:
        """Of several measurements together."""
        several = list(origins)
        names = dict.fromkeys(name for origin in several for name in origin.versions)
        return cls(
            _distinct(origin.dates for origin in several),
            _distinct(origin.machines for origin in several),
            {name: _distinct(origin.versions.get(name, ()) for origin in several) for name in names},
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Origin:
        """From what JSON made of it."""
        return cls(tuple(data["dates"]), tuple(data["machines"]), {name: tuple(each) for name, each in data["versions"].items()})

    def counts_as(self, other: Origin) -> bool:
        """Whether what decides about the result is of the same version."""
        return all(self.versions.get(name) == other.versions.get(name) for name in DECIDING)

    @property
    def days(self) -> str:
        """``2026-11-29 to 2026-11-30``, or the one day."""
        return " to ".join(dict.fromkeys((self.dates[0], self.dates[-1]))) if self.dates else "no day"

    def __str__(self) -> str:
        if not self.dates:
            return "nothing was measured"
        versions = ", ".join(f"{name} {' and '.join(each)}" for name, each in self.versions.items())
        return f"measured on {self.days}, on {' and on '.join(self.machines)}, with {versions}"


def _distinct(values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({value for each in values for value in each}))
