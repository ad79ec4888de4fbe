"""Loss detectors of other tools as functions of a curve, where they are installed: losslint and trainscope.

Each returns the first and last step of its alarms. An alarm that names no step spans the whole curve, in its favour.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

Alarms = list[tuple[int, int]]


def losslint(loss: np.ndarray) -> Alarms:
    """Its checks of the loss, with its own thresholds; it names the first few of its spikes."""
    from losslint.checks import run_all_checks
    from losslint.parsing import RunLog

    findings = run_all_checks(RunLog(list(range(len(loss))), {"loss": [float(value) for value in loss]}, Path("memory")))
    out: Alarms = []
    for finding in findings:
        if finding.severity == "info":
            continue
        steps = finding.details.get("steps")
        if finding.check == "nan_inf":
            out.append((min(steps), len(loss) - 1))
        else:
            out += [(step, step) for step in steps] if steps else [(0, len(loss) - 1)]
    return out


def trainscope(loss: np.ndarray) -> Alarms:
    """Its default detector, fed step by step."""
    from trainscope.core.config import TrainScopeConfig
    from trainscope.core.detectors import make_detector

    detector = make_detector(TrainScopeConfig())
    return [(step, step) for step, value in enumerate(loss) if detector.update(float(value)) is not None]


def installed() -> dict[str, Callable[[np.ndarray], Alarms]]:
    """Those of the two that can be imported, by name."""
    both: dict[str, Callable[[np.ndarray], Alarms]] = {"losslint": losslint, "trainscope": trainscope}
    return {name: peer for name, peer in both.items() if find_spec(name) is not None}
