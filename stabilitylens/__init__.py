"""Attach to any Transformer while it trains, keep a faithful record, and explain what went wrong, or is about to.

The public names are imported on first use, so that reading a run never imports torch. No module bears the
name of a public function: importing it would put the module in the function's place.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stabilitylens._advise import advise as advise
    from stabilitylens._audit import audit as audit
    from stabilitylens._compare import compare as compare
    from stabilitylens._postmortem import postmortem as postmortem
    from stabilitylens.hooks import Lens as Lens
    from stabilitylens.hooks import attach as attach
    from stabilitylens.hooks.blackbox.options import BlackBox as BlackBox
    from stabilitylens.hooks.blackbox.replaying import replay as replay
    from stabilitylens.hooks.blackbox.result import Replay as Replay
    from stabilitylens.hooks.counterfactuals import counterfactuals as counterfactuals
    from stabilitylens.hooks.fuse import fuse_norms as fuse_norms
    from stabilitylens.hooks.fuse import unfuse as unfuse
    from stabilitylens.hooks.sensitivity import lr_sensitivity as lr_sensitivity
    from stabilitylens.report import Report as Report
    from stabilitylens.run import Run as Run
    from stabilitylens.run import load as load

_HOMES = {
    "advise": "stabilitylens._advise",
    "attach": "stabilitylens.hooks",
    "Lens": "stabilitylens.hooks",
    "BlackBox": "stabilitylens.hooks.blackbox.options",
    "Replay": "stabilitylens.hooks.blackbox.result",
    "replay": "stabilitylens.hooks.blackbox.replaying",
    "counterfactuals": "stabilitylens.hooks.counterfactuals",
    "fuse_norms": "stabilitylens.hooks.fuse",
    "unfuse": "stabilitylens.hooks.fuse",
    "lr_sensitivity": "stabilitylens.hooks.sensitivity",
    "audit": "stabilitylens._audit",
    "compare": "stabilitylens._compare",
    "postmortem": "stabilitylens._postmortem",
    "load": "stabilitylens.run",
    "Run": "stabilitylens.run",
    "Report": "stabilitylens.report",
}
__all__ = [
    "BlackBox", "Lens", "Replay", "Report", "Run", "__version__", "advise", "attach", "audit", "compare", "counterfactuals", "fuse_norms", "load",
    "lr_sensitivity", "postmortem", "replay", "unfuse",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stabilitylens' has no attribute {name!r}")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ModuleNotFoundError(
                f"stabilitylens.{name} needs PyTorch: pip install 'stabilitylens[torch]'", name="torch"
            ) from error
        if error.name == "stabilitylens.hooks":
            raise ModuleNotFoundError(
                f"stabilitylens.{name} needs an installed package, and this is its source folder: run pip install -e . in it", name=error.name
            ) from error
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
