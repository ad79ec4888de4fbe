"""Statistics of tensors on their device: one family a file, chosen here by device and dtype."""

from stabilitylens.kernels.adam_ratio import adam_ratio
from stabilitylens.kernels.attention_statistics import attention_statistics
from stabilitylens.kernels.log_partition import log_partition
from stabilitylens.kernels.many_tensors import norm_moments, sums_of_squares
from stabilitylens.kernels.tensor_moments import fourth_moments, moments, norm_row, second_moments, sum_of_squares

__all__ = [
    "adam_ratio", "attention_statistics", "fourth_moments", "log_partition", "moments", "norm_moments", "norm_row", "second_moments",
    "sum_of_squares", "sums_of_squares",
]  # fmt: skip
