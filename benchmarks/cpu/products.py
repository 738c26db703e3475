"""Rates of products with every block format: ours, llama.cpp's on the same shape in the same run, and of memory.

python benchmarks/cpu/products.py [--threads 1,15] [--formats Q4_K,...] [--rows 1,4,512] [--level avx2]
    [--llama FOLDER] [--json FILE] [--budget SECONDS]
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
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
FEW_ROWS = 64  # up to here a product is bound by memory


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


def bench(
    kind: str, rows: int, threads: int, raw: Array, ggml: Ggml | None, seconds: float
) -> dict[str, Any]:
    """Rates in GB/s of weights and 10^9 products a second; `ratio` is our speed over llama.cpp's."""
    fmt, pool = FORMATS[kind], _native.ThreadPool(threads)
    x = np.random.default_rng(2).standard_normal((rows, K), dtype=np.float32)
    out, theirs = np.zeros((rows, len(raw)), np.float32), np.zeros((rows, len(raw)), np.float32)
    runs = [ours(pool, fmt.type_id, raw, x, out)]
    release: Callable[[], None] | None = None
    if ggml is not None:
        ggml.set_threads(threads)
        run, release = ggml.product(fmt.type_id, raw, x, theirs)
        runs.append(run)
    if rows <= FEW_ROWS:
        runs.append(reader(threads, raw[: len(raw) // 8 * 8]))
    taken = interleaved(runs, seconds, time.thread_time if threads == 1 else time.perf_counter)
    if release is not None:
        release()
    found = {"format": kind, "rows": rows, "threads": threads, "level": _native.isa_level()}
    found["gb_per_s"] = round(raw.nbytes / taken[0] / 1e9, 2)
    found["gmac_per_s"] = round(rows * len(raw) * K / taken[0] / 1e9, 1)
    if ggml is not None:
        found["llama_gb_per_s"] = round(raw.nbytes / taken[1] / 1e9, 2)
        found["ratio"] = round(taken[1] / taken[0], 2)
        found["error"] = round(float(np.linalg.norm(out - theirs) / np.linalg.norm(theirs)), 4)
    if rows <= FEW_ROWS:
        found["read_gb_per_s"] = round(raw.nbytes / taken[-1] / 1e9, 2)
        found["read_share"] = round(taken[-1] / taken[0], 3)
    return found


def line(found: dict[str, Any]) -> str:
    text = f"{found['format']:8} {found['threads']:7} {found['rows']:5} {found['gb_per_s']:8.2f} "
    text += f"{found['gmac_per_s']:9.1f}"
    if "ratio" in found:
        text += f" {found['llama_gb_per_s']:11.2f} {found['ratio']:6.2f}x"
        text += "" if found["error"] < 0.05 else f"  results differ by {found['error']}"
    if "read_share" in found:
        text += f" {found['read_gb_per_s']:10.2f} {found['read_share']:6.0%}"
    return text


def measure(args: argparse.Namespace, ggml: Ggml | None) -> list[dict[str, Any]]:
    """Every format, thread count and row count, printed as they come; stops where the budget ends."""
    found: list[dict[str, Any]] = []
    start = time.perf_counter()
    for kind in args.formats.split(","):
        fmt = FORMATS[kind]
        row_bytes = K // fmt.block_values * fmt.block_bytes
        raw = random_weight(kind, (args.mib << 20) // row_bytes // 64 * 64)
        for threads in map(int, args.threads.split(",")):
            for rows in map(int, args.rows.split(",")):
                if time.perf_counter() - start > args.budget:
                    print(
                        f"{args.budget} s are over: {kind} at {threads} threads and all after it are missing"
                    )
                    return found
                weight = raw[:PROMPT_FEATURES] if rows > FEW_ROWS else raw
                found.append(bench(kind, rows, threads, weight, ggml, args.seconds))
                print(line(found[-1]), flush=True)
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1", help="one count or several")
    parser.add_argument("--formats", default=",".join(n for n, f in FORMATS.items() if f.quantised))
    parser.add_argument("--rows", default="1,4,512")
    parser.add_argument("--mib", type=int, default=64, help="weights: beyond the last cache, prompts aside")
    parser.add_argument("--level", default=_native.isa_level())
    parser.add_argument(
        "--llama", help="folder with libggml.so, else that of the installed llama_cpp package"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no line begins")
    parser.add_argument("--json", help="also write all that was found to this file")
    return parser.parse_args()


def main() -> None:
    args = parse()
    _native.set_isa(args.level)
    folder = find_library(args.llama)
    ggml = Ggml(folder) if folder else None
    print(
        f"level {args.level}, k {K}, weights of {args.mib} MiB; medians: of one thread, its processor time; "
        "of more, wall time"
    )
    if ggml is None:
        print(
            "llama.cpp is left out: no llama_cpp package is installed here (pip install llama-cpp-python, or --llama)"
        )
    theirs = "  llama GB/s   ratio" if ggml else ""
    print(f"{'format':8} {'threads':>7} {'rows':>5} {'GB/s':>8} {'GMAC/s':>9}{theirs}  read GB/s, share")
    found = measure(args, ggml)
    if args.json:
        Path(args.json).write_text(
            json.dumps({"level": args.level, "k": K, "mib": args.mib, "results": found}, indent=0)
        )


if __name__ == "__main__":
    # Threads of llama.cpp's that wait spinning would slow whatever runs next; libgomp reads this when it is loaded.
    if os.environ.setdefault("OMP_WAIT_POLICY", "passive") != "passive":
        sys.exit("OMP_WAIT_POLICY must be passive: waiting threads would disturb the other side")
    main()
