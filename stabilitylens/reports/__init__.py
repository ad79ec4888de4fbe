"""One output, one file: each takes a Report and a text stream. ``REPORTERS[format](report, stream)``."""

from stabilitylens.reports._reporter import REPORTERS, Reporter, reporter

__all__ = ["REPORTERS", "Reporter", "reporter"]
