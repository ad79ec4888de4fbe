"""The random states that a step draws from: Python's, NumPy's, torch's on the host and on the device."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

#: the states by whose they are: ``python``, ``numpy``, ``torch`` and, where there is one, ``device``
RandomState = dict[str, Any]


def random_state(device: torch.device) -> RandomState:
    """The states as they are now; nothing is drawn, and no device is waited for."""
    state: RandomState = {"python": random.getstate(), "numpy": np.random.get_state(legacy=True), "torch": torch.get_rng_state()}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def plain(state: RandomState) -> RandomState:
    """The same as plain data, that ``torch.load(weights_only=True)`` loads and :func:`put_back` takes."""
    name, keys, at, has_gauss, gauss = state["numpy"]
    held = torch.from_numpy(np.asarray(keys).astype(np.int64))
    return state | {"numpy": (str(name), held, int(at), int(has_gauss), float(gauss))}


def put_back(state: RandomState, device: torch.device) -> None:
    """Make the states what they were; a device's only where the replay has one too."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, at, has_gauss, gaussian = state["numpy"]
    np.random.set_state((name, np.asarray(keys).astype(np.uint32), at, has_gauss, gaussian))
    torch.set_rng_state(state["torch"])
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"], device)
