#!/usr/bin/env bash
# Everything that needs a CUDA device, in under eight minutes: the tests of what leaves the device, then what a lens costs.
# Usage: benchmarks/gpu.sh [FOLDER], in an environment with torch, transformers and this package's dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-gpu-results}"
mkdir -p "$out"
python -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else "torch sees no CUDA device here: run this on a machine with one")'
python -c 'import stabilitylens' 2>/dev/null || python -m pip install --quiet --no-deps -e .
timeout 120 python -m pytest -q tests/test_one_copy.py tests/test_many_tensors.py 2>&1 | tee "$out/tests.txt" || true
timeout 330 python -m benchmarks.gpu --steps 100 2>&1 | tee "$out/overhead.txt"
