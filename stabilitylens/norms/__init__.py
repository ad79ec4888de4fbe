"""Normalisation layers and their placements, each with its formula, source, defaults and known failure."""

from stabilitylens.norms._norm import NORMS, make_norm
from stabilitylens.norms._residual import PLACEMENTS, Residual, residual
from stabilitylens.norms.adaptive_norm import AdaptiveNorm
from stabilitylens.norms.batch_norm import BatchNorm
from stabilitylens.norms.choice import choose_norm
from stabilitylens.norms.deep_norm import DeepNorm, deep_norm_init_, deep_norm_scales
from stabilitylens.norms.depth_scaled_norm import DepthScaledNorm
from stabilitylens.norms.derf import Derf
from stabilitylens.norms.dyt import DyT
from stabilitylens.norms.group_norm import GroupNorm
from stabilitylens.norms.layer_norm import LayerNorm
from stabilitylens.norms.p_rms_norm import PartialRMSNorm
from stabilitylens.norms.placements import (
    NoNorm,
    OutputNorm,
    ParallelNorm,
    PeriNorm,
    PeriodicNorm,
    PostNorm,
    PreNorm,
    ReZero,
)
from stabilitylens.norms.precision_islands import PrecisionIsland, island_error
from stabilitylens.norms.qk_norm import QKNorm
from stabilitylens.norms.rms_norm import RMSNorm
from stabilitylens.norms.scale_norm import ScaleNorm
from stabilitylens.norms.soft_cap import SoftCap

__all__ = [
    "NORMS", "PLACEMENTS", "AdaptiveNorm", "BatchNorm", "DeepNorm", "DepthScaledNorm", "Derf", "DyT", "GroupNorm",
    "LayerNorm", "NoNorm", "OutputNorm", "ParallelNorm", "PartialRMSNorm", "PeriNorm", "PeriodicNorm", "PostNorm",
    "PreNorm", "PrecisionIsland", "QKNorm", "RMSNorm", "ReZero", "Residual", "ScaleNorm", "SoftCap", "choose_norm", "deep_norm_init_",
    "deep_norm_scales", "island_error", "make_norm", "residual",
]  # fmt: skip
