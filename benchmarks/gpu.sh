#!/usr/bin/env bash
# Everything that needs a CUDA device, in under eight minutes: the tests of what leaves the device, then what a lens costs.
# Usage: benchmarks/gpu.sh [FOLDER], in an environment with torch, transformers and this package's dependencies.
# Exit code 1 where a test failed; what a lens costs is measured all the same.
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-gpu-results}"
source benchmarks/gpu_ready.sh transformers
mkdir -p "$out"
tests=0
timeout 120 python -m pytest -q tests/test_one_copy.py tests/test_many_tensors.py 2>&1 | tee "$out/tests.txt" || tests=1
timeout 330 python -m benchmarks.gpu --steps 100 2>&1 | tee "$out/overhead.txt"
exit "$tests"
