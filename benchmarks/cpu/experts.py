"""Routed experts beside plain products of as many bytes of the same weights, taken in turns: GB/s of weights.

usage: experts.py [--types Q4_K+Q6_K,IQ3_XXS+Q2_0,Q8_0+Q8_0] [--rows 1,4] [--experts 10] [--threads N] [--isa LEVEL]
    [--json]

All rows choose the same experts, as the plain product has the same weights for all its rows.
"""

import argparse
import json
import os
import statistics
import time

import numpy as np

from strata import _native
from strata.quants import FORMATS
from strata.synth.blocks import Pool, random_pieces

HIDDEN, INNER = 2560, 640  # Qwen3.8-Flash-Next
STEPS, PARTS = 30, ("gate_up", "down")


def random_stack(name, experts, n, k, seed):
    """[experts, bytes] of random blocks; every expert its own bytes."""
    fmt, rng = FORMATS[name], np.random.default_rng(seed)
    pieces = random_pieces(Pool(seed, 1 << 20), fmt.type, experts * n * k, k**-0.5, rng)
    return np.concatenate([piece.reshape(-1) for _, piece in pieces]).reshape(experts, -1)


class Rows:
    """Quantised rows of k values and their addresses: codes, scales, sums."""

    def __init__(self, rows, k):
        self.codes = np.zeros((rows, k), np.int8)
        self.scales, self.sums = np.zeros((rows, k // 32), np.float32), np.zeros((rows, k // 16), np.int16)
        self.at = [a.ctypes.data for a in (self.codes, self.scales, self.sums)]


class Layer:
    """A layer's gate, up and down. Experts of the first half are routed to, plain products read the second half."""

    def __init__(self, types, experts):
        self.first, self.second = types.split("+")
        self.gate = random_stack(self.first, experts, INNER, HIDDEN, 1)
        self.up = random_stack(self.first, experts, INNER, HIDDEN, 2)
        self.down = random_stack(self.second, experts, HIDDEN, INNER, 3)
        self.stacks = (self.gate, self.up, self.down)
        self.ids = [FORMATS[name].type_id for name in (self.first, self.second)]

    def table(self, stack):
        return stack.ctypes.data + np.arange(len(stack), dtype=np.uint64) * np.uint64(stack.shape[1])

    def bytes_of(self, count):
        return {"gate_up": 2 * count * self.gate.shape[1], "down": count * self.down.shape[1]}


class Bench:
    """Programs of both sides: records 0 (quantise), then gate_up and down."""

    def __init__(self, layer, rows, count, pool):
        self.layer, self.count, self.rows, self.pool = layer, count, rows, pool
        g = np.random.default_rng(5)
        self.live = np.array([rows], np.int32)
        self.x, self.q = g.standard_normal((rows, HIDDEN), dtype=np.float32), Rows(rows, HIDDEN)
        self.inner, self.pairs = Rows(rows * count, INNER), np.zeros(rows * count, np.int32)
        experts = len(layer.gate)
        self.offsets, self.tables = np.zeros(experts + 1, np.int32), [layer.table(s) for s in layer.stacks]
        self.out = np.zeros((rows * count, HIDDEN), np.float32)
        self.wide = np.zeros((rows, 2 * count * INNER), np.float32)
        self.mixed = np.zeros((rows, count * HIDDEN), np.float32)
        self.routed = self.routed_program()
        self.plain = [self.plain_program(first) for first in range(experts // 2, experts - count + 1, count)]

    def routed_program(self):
        program, layer, groups = _native.Program(self.pool), self.layer, [self.pairs, self.offsets]
        at, (gate, up, down) = [a.ctypes.data for a in groups], [t.ctypes.data for t in self.tables]
        experts = len(layer.gate)
        program.add("quantize", [self.live.ctypes.data, self.x.ctypes.data, *self.q.at], [HIDDEN], [])
        dims = [layer.ids[0], layer.ids[0], HIDDEN, INNER, experts, self.count]
        program.add("expert_gate_up", [*at, 0, *self.q.at, gate, up, 0, 0, *self.inner.at], dims, [])
        last = [down, 0, self.out.ctypes.data]
        program.add(
            "expert_down", [*at, 0, *self.inner.at, *last], [layer.ids[1], INNER, HIDDEN, experts], []
        )
        return program

    def plain_program(self, first):
        program, layer, live = _native.Program(self.pool), self.layer, self.live.ctypes.data
        for stack in (layer.gate, layer.up):
            dims = [layer.ids[0], HIDDEN, self.count * INNER]
            program.add(
                "linear_q", [live, *self.q.at, stack[first].ctypes.data, self.wide.ctypes.data], dims, []
            )
        last = [layer.down[first].ctypes.data, self.mixed.ctypes.data]
        program.add("linear_q", [live, *self.inner.at, *last], [layer.ids[1], INNER, self.count * HIDDEN], [])
        return program

    def choose(self, chosen):
        """Every row's ranks 0 .. count - 1 go to `chosen`, ascending."""
        self.offsets[:] = 0
        self.offsets[chosen + 1] = self.rows
        np.cumsum(self.offsets, out=self.offsets)
        ranks, rows = np.arange(self.count)[:, None], np.arange(self.rows)[None, :]
        self.pairs[:] = (rows * self.count + ranks).reshape(-1)

    def measure(self, steps):
        """{(side, part): median seconds}."""
        g, taken = np.random.default_rng(6), {}
        for step in range(steps):
            self.choose(np.sort(g.permutation(len(self.layer.gate) // 2)[: self.count]))
            plain = self.plain[step % len(self.plain)]
            self.routed.run(0, 1)
            for side, program, begin, end in (("routed", self.routed, 1, 2), ("plain", plain, 0, 2)):
                for part, record in (("gate_up", (begin, end)), ("down", (end, end + 1))):
                    start = time.perf_counter()
                    if program.run(*record) != 0:
                        raise RuntimeError(f"{side} {part} raised a fault")
                    taken.setdefault((side, part), []).append(time.perf_counter() - start)
        return {key: statistics.median(times) for key, times in taken.items()}


def report(layer, rows, args, pool):
    """One line: rates of each part and of both, and routed over plain."""
    seconds = Bench(layer, rows, args.experts, pool).measure(args.steps)
    sizes = layer.bytes_of(args.experts)
    found = {"types": f"{layer.first}+{layer.second}", "rows": rows, "threads": args.threads}
    found["isa"] = _native.isa_level()
    for part, parts in (*((p, (p,)) for p in PARTS), ("both", PARTS)):
        rate = {side: sum(sizes[p] for p in parts) / sum(seconds[side, p] for p in parts) / 1e9
                for side in ("routed", "plain")}  # fmt: skip
        found[part] = {side: round(r, 2) for side, r in rate.items()}
        found[part]["share"] = round(rate["routed"] / rate["plain"], 3)
    return found


def line(found):
    text = f"{found['types']:14} {found['rows']} rows  {found['threads']} threads  {found['isa']}"
    for part in (*PARTS, "both"):
        f = found[part]
        text += f"  {part} {f['routed']:5.1f} / {f['plain']:5.1f} = {f['share']:4.0%}"
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    types = "Q4_K+Q6_K,IQ3_XXS+Q2_0,Q8_0+Q8_0"
    parser.add_argument("--types", default=types, help="of gate and up + of down")
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--experts", type=int, default=10, help="a token")
    parser.add_argument("--layer", type=int, default=128, help="experts in the layer")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--isa", default=_native.isa_level())
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    _native.set_isa(args.isa)
    pool = _native.ThreadPool(args.threads)
    if not args.json:
        print("GB/s of weights, routed / plain = share; medians, in turns")
    for kind in args.types.split(","):
        layer = Layer(kind, args.layer)
        for rows in map(int, args.rows.split(",")):
            found = report(layer, rows, args, pool)
            print(json.dumps(found) if args.json else line(found), flush=True)


if __name__ == "__main__":
    main()
