#!/usr/bin/env bash
# The kernels on a GPU, in under eight minutes: correctness first, then bandwidths against copies and other libraries.
# Usage: benchmarks/gpu_kernels.sh [FOLDER], in an environment with torch, triton and this package's dependencies;
# liger-kernel and quack-kernels are compared with where they are installed. Leaves table.txt, table.json (after every row), and
# bandwidth.png where matplotlib is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-gpu-kernels}"
source benchmarks/gpu_ready.sh triton
mkdir -p "$out"
export -n TRITON_INTERPRET 2>/dev/null || true
timeout 450 python -u -m benchmarks.gpu_kernels --out "$out" 2>&1 | tee "$out/table.txt"
