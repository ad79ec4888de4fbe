"""What tells runs apart: where they part, layer by layer, and by which traits."""

from stabilitylens.comparison._comparison import Comparison, Pair, comparison
from stabilitylens.comparison._many import Shared
from stabilitylens.comparison._parting import Parting, part, partings
from stabilitylens.comparison._ratios import Ratios, ratios
from stabilitylens.comparison._traits import Difference, differences, traits

__all__ = [
    "Comparison", "Difference", "Pair", "Parting", "Ratios", "Shared", "comparison", "differences", "part", "partings", "ratios",
    "traits",
]  # fmt: skip
