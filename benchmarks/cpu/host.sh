#!/bin/sh
# Products with every format on a machine with many cores: 1 and all but one thread, AVX-512 and AVX2 forced, beside
# llama.cpp's libraries. usage: host.sh OUT NATIVE_GGML AVX2_GGML [SECONDS], the package being importable.
set -eu
out=$1 native=$2 avx2=$3 seconds=${4:-130}
here=$(dirname "$0")
python=${PYTHON:-python3}
cores=$(nproc)
threads=1$([ "$cores" -gt 2 ] && echo ",$((cores - 1))" || true)
best=$("$python" -c 'from strata import _native; print(_native.isa_level())')
mkdir -p "$out"
lscpu | grep -E '^(Model name|CPU\(s\)|L1d|L2|L3|Flags)' > "$out/machine.txt"
run() { # level, ggml folder, rows, budget, line
  "$python" "$here/products.py" --level "$1" --llama "$2" --threads "$threads" --rows "$3" --budget "$4" --seconds "$5" \
    --json "$out/products-$1-rows$3.json" 2> "$out/$1.err" | tee "$out/products-$1-rows$3.txt"
}
run "$best" "$native" 1,4 $((seconds * 4 / 10)) 0.15
run avx2 "$avx2" 1,4 $((seconds * 4 / 10)) 0.15
run "$best" "$native" 512 $((seconds * 2 / 10)) 0.1
"$python" "$here/experts.py" --json > "$out/experts.json" || true
