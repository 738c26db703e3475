"""Routed experts alone on the CPU: weight bytes a second, for decode-sized steps of one layer.

usage: experts.py [--types IQ3_XXS,Q2_0] [--rows 1,4] [--experts 10] [--threads N] [--isa LEVEL] [--json]
"""

import argparse
import json
import os
import time

import numpy as np

from strata import _native
from strata.backends.cpu import CpuBackend
from strata.ops import (
    Buffer,
    Builder,
    ExpertWeights,
    StepBuffers,
    Weight,
    combine,
    group_by_expert,
    routed_experts,
)
from strata.quants import FORMATS
from strata.synth.blocks import Pool, random_pieces

HIDDEN, INNER = 2560, 640  # Qwen3.8-Flash-Next
STEPS = 40


def random_stack(name, experts, n, k, seed):
    """A stack of random blocks; every expert its own bytes."""
    fmt, rng = FORMATS[name], np.random.default_rng(seed)
    pieces = random_pieces(Pool(seed, 1 << 20), fmt.type, experts * n * k, k**-0.5, rng)
    data = np.concatenate([piece.reshape(-1) for _, piece in pieces])
    return Weight(f"{name}.{seed}", fmt, (experts, n, k), data.reshape(experts, -1))


def make_layer(gate_up, down, experts):
    """The experts of one layer."""
    return ExpertWeights(
        random_stack(gate_up, experts, INNER, HIDDEN, 1),
        random_stack(gate_up, experts, INNER, HIDDEN, 2),
        random_stack(down, experts, HIDDEN, INNER, 3),
    )


def measure(layer, rows, per_token, backend):
    """(GB/s, microseconds a step) over steps that each choose experts anew; the median step counts."""
    steps = StepBuffers.create(rows, 1, 64, rows)
    b, live, experts = Builder(steps, rows), steps.num_rows, layer.gate.shape[0]
    x, mix = (
        Buffer(name, (rows, width), "f32", "input", live=live)
        for name, width in (("x", HIDDEN), ("mix", per_token))
    )
    ids = Buffer("ids", (rows, per_token), "i32", "input", live=live)
    combine(b, routed_experts(b, x, group_by_expert(b, ids, experts), layer), mix)
    program = b.finish()
    backend.reserve(program.arena_bytes)
    replay = backend.lower(program)
    g = np.random.default_rng(5)
    backend.array(live)[0] = rows
    backend.array(x)[:] = g.standard_normal((rows, HIDDEN))
    rates, times = [], []
    for _ in range(STEPS):
        chosen = np.stack([g.permutation(experts)[:per_token] for _ in range(rows)])
        backend.array(ids)[:] = chosen
        start = time.perf_counter()
        replay.run()
        times.append(time.perf_counter() - start)
        planes = (layer.gate, layer.up, layer.down)
        rates.append(len(np.unique(chosen)) * sum(w.nbytes // experts for w in planes) / times[-1] / 1e9)
    return float(np.median(rates)), float(np.median(times)) * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default="IQ3_XXS,Q2_0", help="of gate and up, and of down")
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--experts", type=int, default=10, help="a token")
    parser.add_argument(
        "--layer", type=int, default=128, help="experts in the layer: more than a cache holds"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    layer, backend = make_layer(*args.types.split(","), args.layer), CpuBackend(args.threads, args.isa)
    for rows in map(int, args.rows.split(",")):
        rate, step = measure(layer, rows, args.experts, backend)
        found = {
            "types": args.types,
            "rows": rows,
            "threads": args.threads,
            "isa": _native.isa_level(),
            "gb_per_s": round(rate, 2),
            "us": round(step, 1),
        }
        print(json.dumps(found) if args.json else "  ".join(f"{k} {v}" for k, v in found.items()))


if __name__ == "__main__":
    main()
