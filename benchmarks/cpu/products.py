"""Rates of products with every block format: ours, llama.cpp's on the same shape in the same run, and of memory.

python benchmarks/cpu/products.py [--threads 1] [--formats Q4_K,...] [--rows 1,4,512] [--level avx2] [--llama FOLDER]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ggml import Ggml, find_library
from numpy.typing import NDArray

from strata import _native
from strata.quants import FORMATS
from strata.synth.blocks import set_scales

Array = NDArray[Any]
K = 2560
PROMPT_FEATURES = 1536


def random_weight(kind: str, features: int) -> Array:
    """[features, row bytes]: random codes, scales of the size that weights have."""
    fmt = FORMATS[kind]
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (features * K // fmt.block_values, fmt.block_bytes), dtype=np.uint8)
    if kind == "NVFP4":
        blocks[:, :4] = 56  # 1.0
    else:
        set_scales(kind, blocks, 0.02)
    return blocks.reshape(features, -1)


def ours(pool: Any, type_id: int, raw: Array, x: Array, out: Array) -> Callable[[], None]:
    rows = len(x)
    planes = [
        np.zeros((rows, K), np.int8),
        np.zeros((rows, K // 32), np.float32),
        np.zeros((rows, K // 16), np.int16),
    ]
    live = np.array([rows], np.int32)
    program = _native.Program(pool)
    addresses = [a.ctypes.data for a in planes]
    program.add("quantize", [live.ctypes.data, x.ctypes.data, *addresses], [K], [])
    program.add(
        "linear_q",
        [live.ctypes.data, *addresses, raw.ctypes.data, out.ctypes.data],
        [type_id, K, len(raw)],
        [],
    )
    keep = (live, planes, raw, x, out)

    def run() -> None:
        if program.run(0, 2) != 0 or not keep:
            raise RuntimeError("the product raised a fault")

    return run


def reader(pool_threads: int, memory: Array) -> Callable[[], None]:
    """Reads `memory` once, a part on each thread."""
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(memory.reshape(-1).view(np.uint64), pool_threads)
    if pool_threads == 1:
        return lambda: _native.sum_words(parts[0].ctypes.data, parts[0].size) and None
    executor = ThreadPoolExecutor(pool_threads)
    return lambda: list(executor.map(lambda p: _native.sum_words(p.ctypes.data, p.size), parts)) and None


def interleaved(runs: list[Callable[[], None]], seconds: float, clock: Callable[[], float]) -> list[float]:
    """Median seconds of each of `runs`, taken in turns for about `seconds` in all, at least three times."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    while len(times[0]) < 3 or (time.perf_counter() - start < seconds and len(times[0]) < 200):
        for run, taken in zip(runs, times, strict=True):
            begin = clock()
            run()
            taken.append(clock() - begin)
    return [statistics.median(t) for t in times]


def measure(kind: str, rows: int, pool: Any, ggml: Ggml | None, args: argparse.Namespace) -> str:
    fmt = FORMATS[kind]
    row_bytes = K // fmt.block_values * fmt.block_bytes
    features = PROMPT_FEATURES if rows > 64 else (args.mib << 20) // row_bytes // 64 * 64
    raw = random_weight(kind, features)
    x = np.random.default_rng(2).standard_normal((rows, K), dtype=np.float32)
    out, theirs = np.zeros((rows, features), np.float32), np.zeros((rows, features), np.float32)
    runs = [ours(pool, fmt.type_id, raw, x, out)]
    release: Callable[[], None] | None = None
    if ggml is not None:
        run, release = ggml.product(fmt.type_id, raw, x, theirs)
        runs.append(run)
    if rows <= 64:
        runs.append(reader(args.threads, raw[: len(raw) // 8 * 8]))
    taken = interleaved(runs, args.seconds, time.thread_time if args.threads == 1 else time.perf_counter)
    if release is not None:
        release()
    rate = raw.nbytes / taken[0] / 1e9
    speed = rows * features * K / taken[0] / 1e9
    line = f"{kind:8} {rows:5} {rate:8.2f} {speed:9.1f}"
    if ggml is not None:
        error = np.linalg.norm(out - theirs) / np.linalg.norm(theirs)
        line += f" {raw.nbytes / taken[1] / 1e9:8.2f} {taken[1] / taken[0]:7.2f}x"
        line += "" if error < 0.05 else f"  results differ by {error:.3f}"
    if rows <= 64:
        line += f" {raw.nbytes / taken[-1] / 1e9:8.2f} {taken[-1] / taken[0]:6.0%}"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--formats", default=",".join(n for n, f in FORMATS.items() if f.quantised))
    parser.add_argument("--rows", default="1,4,512")
    parser.add_argument("--mib", type=int, default=64, help="weights: beyond the last cache, prompts aside")
    parser.add_argument("--level", default=_native.isa_level())
    parser.add_argument(
        "--llama", help="folder with libggml.so, else that of the installed llama_cpp package"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    args = parser.parse_args()
    _native.set_isa(args.level)
    pool = _native.ThreadPool(args.threads)
    folder = find_library(args.llama)
    if folder and not folder.exists():
        folder = None
    ggml = Ggml(folder, args.threads) if folder else None
    clock = "processor time of the one thread" if args.threads == 1 else "wall time"
    print(f"level {args.level}, threads {args.threads}, k {K}, weights of {args.mib} MiB; medians of {clock}")
    if ggml is None:
        print(
            "llama.cpp is left out: no llama_cpp package is installed here (pip install llama-cpp-python, or --llama)"
        )
    theirs = "  llama GB/s   ratio" if ggml else ""
    print(f"{'format':8} {'rows':>5} {'GB/s':>8} {'GMAC/s':>9}{theirs}  read GB/s, share")
    for kind in args.formats.split(","):
        for rows in map(int, args.rows.split(",")):
            print(measure(kind, rows, pool, ggml, args), flush=True)


if __name__ == "__main__":
    main()
