"""One metric, one file: pure functions of moments. ``compute(sample)`` evaluates all that the sample allows."""

from stabilitylens.metrics._metric import METRICS, Metric, Sample, compute, metric

__all__ = ["METRICS", "Metric", "Sample", "compute", "metric"]
