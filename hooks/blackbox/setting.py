"""What decides about the bits of a result besides its inputs: versions, device, threads, flags."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch
from torch import nn

from stabilitylens import __version__

_NAMES = {
    "torch": "torch", "numpy": "numpy", "python": "Python", "device": "the device", "threads": "the number of threads",
    "dtype": "the weights' dtype", "deterministic": "torch's deterministic algorithms", "cudnn_benchmark": "cuDNN's benchmark mode",
    "cudnn_deterministic": "cuDNN's deterministic mode", "tf32": "the precision of float32 products", "machine": "the machine's kind",
}  # fmt: skip


def setting_of(model: nn.Module) -> dict[str, Any]:
    """The setting of this process and model."""
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "stabilitylens": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": name,
        "dtype": "none" if first is None else str(first.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "tf32": torch.get_float32_matmul_precision(),
    }


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """How two settings differ, in words."""
    return [
        f"{words} was {there.get(key)} and is {here[key]}"
        for key, words in _NAMES.items()
        if key in here and there.get(key) != here[key] and not (key == "threads" and here["device"] != "cpu")
    ]
