#!/bin/bash
# Everything in one go on a machine with a GPU. Arguments: output folder, then what to run.
set -o pipefail
cd "$(dirname "$0")/../.."
out=${1:-/tmp/contract}; shift
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH=.
for part in "$@"; do
  echo "== $part"
  case $part in
    machine) nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader; lscpu | grep -E "Model name|^CPU\(s\)|L2|L3"; lscpu | grep -o -E "avx512_vnni|avx512_vbmi|avx512_bitalg|amx_int8" | xargs ;;
    peak) python3 -m benchmarks.contract.peak 2>&1 | tee "$out/peak.log" ;;
    products) python3 -m benchmarks.contract.products --out "$out/products.json" 2>&1 | tee "$out/products.log" ;;
    steps) python3 -m benchmarks.contract.steps 2>&1 | tee "$out/steps.log" ;;
    layers) python3 -m benchmarks.contract.layers --out "$out/layers.json" 2>&1 | tee "$out/layers.log" ;;
    tests) python3 -m pytest -q -p no:cacheprovider --import-mode=importlib tests/contract/test_cuda.py 2>&1 | tee "$out/tests.log" ;;
  esac
done
