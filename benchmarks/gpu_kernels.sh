#!/usr/bin/env bash
# The kernels on a GPU, in under eight minutes: correctness first, then bandwidths against copies and other libraries.
# Usage: benchmarks/gpu_kernels.sh [FOLDER], in an environment with torch, triton and this package's dependencies;
# liger-kernel and quack-kernels are compared with where they are installed. Leaves table.txt, table.json, bandwidth.png.
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-gpu-kernels}"
mkdir -p "$out"
python -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else "torch sees no GPU here: run this on a machine with one")'
python -c 'import triton' 2>/dev/null || { echo "triton is not installed: pip install triton" >&2; exit 1; }
export -n TRITON_INTERPRET 2>/dev/null || true
timeout 450 python -m benchmarks.gpu_kernels --out "$out" 2>&1 | tee "$out/table.txt"
