"""Norms, activations, rotation and quantisation of rows, each level of this processor in turns: 10^9 values a second.

usage: rows.py [--rows 32] [--width 2560] [--repeats 40]
"""

import argparse
import statistics
import time

import numpy as np

from strata import _native

HEAD = 128
LEVELS = ("generic", "avx2", "avx512")


def programs(pool, rows, width):
    """{operator: program of one record}; every array is kept by the caller."""
    g = np.random.default_rng(1)
    live, x, y = np.array([rows], np.int32), *(g.standard_normal((2, rows, width), dtype=np.float32))
    out, weight = np.zeros_like(x), g.standard_normal(width, dtype=np.float32)
    codes, scales = np.zeros((rows, width), np.int8), np.zeros((rows, width // 32), np.float32)
    sums = np.zeros((rows, width // 16), np.int16)
    positions, table = np.arange(rows, dtype=np.int32), g.standard_normal((rows, HEAD), dtype=np.float32)
    keep = (live, x, y, out, weight, codes, scales, sums, positions, table)
    at = [a.ctypes.data for a in keep]
    records = {
        "rms_norm": ([at[0], at[1], at[4], at[3]], [width, 1], [1e-6]),
        "silu_mul": ([at[0], at[1], at[2], at[3]], [width], []),
        "gelu_mul": ([at[0], at[1], at[2], at[3]], [width], []),
        "add": ([at[0], at[1], at[2], at[3]], [width], []),
        "quantize": ([at[0], at[1], *at[5:8]], [width], []),
    }
    for style, name in enumerate(("rope, pairs", "rope, halves")):
        records[name] = ([at[0], at[8], at[9], at[1], at[3]], [width // HEAD, HEAD, HEAD, style, rows], [])
    made = {}
    for name, record in records.items():
        made[name] = _native.Program(pool)
        made[name].add(name.split(",")[0], *record)
    return made, keep


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--width", type=int, default=2560)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    pool, sides = _native.ThreadPool(1), {}
    for level in LEVELS:
        _native.set_isa(level)
        sides[level] = programs(pool, args.rows, args.width)
    print(f"one thread, {args.rows} rows of {args.width}, 10^9 values a second: {', '.join(LEVELS)}")
    for name in sides[LEVELS[0]][0]:
        taken = {level: [] for level in LEVELS}
        for _ in range(args.repeats):
            for level, (made, _) in sides.items():
                start = time.thread_time_ns()
                made[name].run(0, 1)
                taken[level].append(time.thread_time_ns() - start)
        rates = [args.rows * args.width / statistics.median(t) for t in taken.values()]
        print(f"{name:12}" + "".join(f"{r:8.2f}" for r in rates), flush=True)


if __name__ == "__main__":
    main()
