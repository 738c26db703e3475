"""Mixers of one layer on the CPU, without their projections: microseconds a step at the target's geometry.

usage: mixers.py [--rows 1,4] [--chunk 128] [--context 4096] [--threads N] [--isa LEVEL] [--json]
"""

import argparse
import json
import os
import time

import numpy as np

from strata import _native
from strata.backends.cpu import CpuBackend
from strata.memory import DeltaShape, IndexShape, RingShape, StatePool, StateShape
from strata.ops import (
    Buffer,
    Builder,
    NgramHash,
    RopeScaling,
    Rotary,
    StepBuffers,
    Weight,
    attention,
    causal_conv,
    cell_positions,
    delta_rule,
    gated_norm,
    grouped_norm,
    head_norm_rope,
    index_keys,
    ngram_gate,
    ngram_rows,
    rope_table,
    rotary_axes,
    router,
    select_blocks,
    sparse_attention,
    stream_mix,
    stream_write,
    table_rows,
    unit_heads,
)
from strata.quants import FORMATS

HIDDEN, STREAMS, HEADS, HEAD_DIM, KEY_HEADS, VALUE_HEADS, DIM = 2560, 4, 24, 256, 16, 48, 128  # Flash-Next
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM
BUDGET, RATIO, INDEX_HEADS = 512, 4, 4
REPEATS = 20


class Bench:
    """A program of one op, with random inputs."""

    def __init__(self, rows, form, context, kv):
        self.steps = StepBuffers.create(rows, 1, context + rows, rows)
        self.builder, self.rows, self.rng = Builder(self.steps, rows, form), rows, np.random.default_rng(1)
        shape = StateShape(
            1, 2, HEAD_DIM, IndexShape(1, DIM, RATIO), (DeltaShape(KEY_HEADS, VALUE_HEADS, DIM, DIM, True),),
            (RingShape(CHANNELS, 3),), history=2,
        )  # fmt: skip
        self.state = StatePool.create(shape, -(-(context + rows) // 64), 1, kv)
        self.inputs, self.context = [], context // 64 * 64

    def x(self, width):
        buffer = Buffer(f"x{len(self.inputs)}", (self.rows, width), "f32", "input", live=self.steps.num_rows)
        self.inputs.append(buffer)
        return buffer

    def vector(self, *shape):
        data = self.rng.standard_normal(shape).astype(np.float32).view(np.uint8).reshape(-1)
        return Weight("vector", FORMATS["F32"], shape, data)

    def microseconds(self, backend):
        """The median step."""
        program = self.builder.finish()
        backend.reserve(program.arena_bytes)
        replay, at, s = backend.lower(program), backend.array, self.steps
        for buffer in self.inputs:
            at(buffer)[:] = self.rng.standard_normal(buffer.shape) * (-0.1 if buffer.shape[1] < DIM else 0.1)
        at(self.state.index[0].pooled)[:] = self.rng.standard_normal(at(self.state.index[0].pooled).shape)
        at(s.num_rows)[0] = self.rows
        at(s.positions)[:] = self.context + np.arange(self.rows)
        at(s.rope_positions)[:] = at(s.positions)[:, None]
        at(s.page_table)[0] = np.arange(len(at(s.page_table)[0]))
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            replay.run()
            times.append(time.perf_counter() - start)
        return float(np.median(times)) * 1e6


def delta(n):
    delta_rule(n.builder, n.x(2 * KEY_HEADS * DIM), n.x(CHANNELS), n.x(2 * VALUE_HEADS), n.state.delta[0])


def sparse(n):
    selected = select_blocks(n.builder, n.x(INDEX_HEADS * DIM), n.state.index[0], BUDGET)
    sparse_attention(n.builder, n.x(HEADS * HEAD_DIM), selected, n.state.kv.layers[0], HEADS, RATIO, 1 / 16)


def rotary(n):
    return Rotary(rope_table(n.context + n.rows, 64, 1e7, RopeScaling()), rotary_axes(32, (11, 11, 10)))


def norm_rope(n):
    head_norm_rope(n.builder, n.x(2 * HEADS * HEAD_DIM), n.vector(HEAD_DIM), rotary(n), 1e-6, 2 * HEAD_DIM)


def index(n):
    pool = n.state.index[0]
    cell_positions(n.builder, pool.cells)
    index_keys(n.builder, n.x(DIM), n.vector(DIM), pool, rotary(n), 1e-6)


def ngrams(n):
    """Rows of a small table: memory is not what this measures."""
    fmt, heads, each = FORMATS["IQ4_NL"], 16, 1009
    data = n.rng.integers(0, 60, (heads * each, 160 // fmt.block_values * fmt.block_bytes), dtype=np.uint8)
    table = Weight("table", fmt, (heads * each, 160), data.reshape(-1))
    hashed = NgramHash.create(
        (23703573157769, 20109073645365, 8052911324071), (each,) * heads, range(0, heads * each, each), 1
    )
    table_rows(n.builder, ngram_rows(n.builder, hashed, n.state.history), table)


WIDE = STREAMS * HIDDEN
CASES = {
    "router": lambda n: router(n.builder, n.x(HIDDEN), n.vector(512, HIDDEN), 10, renormalise=True),
    "attention": lambda n: attention(n.builder, n.x(HEADS * HEAD_DIM), n.state.kv.layers[0], HEADS, 1 / 16),
    "index_keys": index,
    "ngram_rows, table_rows": ngrams,
    "ngram_gate": lambda n: ngram_gate(n.builder, n.x(WIDE), n.x(WIDE), n.x(HIDDEN)),
    "delta_rule": delta,
    "causal_conv": lambda n: causal_conv(n.builder, n.x(CHANNELS), n.vector(CHANNELS, 4), n.state.rings[0]),
    "unit_heads": lambda n: unit_heads(n.builder, n.x(CHANNELS), KEY_HEADS, DIM),
    "gated_norm": lambda n: gated_norm(
        n.builder, n.x(VALUE_HEADS * DIM), n.x(VALUE_HEADS * DIM), n.vector(DIM), 1e-6, silu=False
    ),
    "select, sparse_attention": sparse,
    "head_norm_rope": norm_rope,
    "grouped_norm": lambda n: grouped_norm(n.builder, n.x(WIDE), n.vector(WIDE), STREAMS, 1e-6),
    "stream_mix": lambda n: stream_mix(n.builder, n.x(WIDE), n.x(WIDE), STREAMS),
    "stream_write": lambda n: stream_write(n.builder, n.x(WIDE), n.x(HIDDEN), n.x(STREAMS)),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--kv", default="f16", help="f32, f16 or int8 cells")
    parser.add_argument("--cases", default=";".join(CASES), help="some of them, separated by semicolons")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [(int(n), "step") for n in options.rows.split(",")] + [(options.chunk, "chunk")] * bool(
        options.chunk
    )
    found = []
    for name in options.cases.split(";"):
        emit = CASES[name]
        for rows, form in sizes:
            bench = Bench(rows, form, options.context, options.kv)
            emit(bench)
            time_us = bench.microseconds(CpuBackend(options.threads, options.isa))
            found.append({"case": name, "rows": rows, "form": form, "microseconds": round(time_us, 1)})
    if options.json:
        print(json.dumps({"isa": _native.isa_level(), "threads": options.threads, "results": found}))
        return
    for f in found:
        print(f"{f['case']:26} {f['form']:5} {f['rows']:4} rows {f['microseconds']:10.1f} us")


if __name__ == "__main__":
    main()
