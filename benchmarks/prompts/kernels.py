"""Times the kernels of prompts alone, with floors beside, on a GPU.

Geometry of Qwen3.8-Flash-Next (a layer), and of the dense model of docs/measurements.md. `--plain`: kernels without
tensor cores, few rows. `equal`: whether chunks of other sizes give the same bits.
"""

import argparse
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from strata.backends.cuda import CudaBackend, lower_attention, lower_sparse, lower_state
from strata.backends.cuda.driver import Driver
from strata.memory import IndexShape, StatePool, StateShape
from strata.ops import (
    Buffer,
    Builder,
    DeltaState,
    StepBuffers,
    Weight,
    attention,
    causal_conv,
    copy_rows,
    delta_rule,
    gated_norm,
    grouped_norm,
    sparse_attention,
    stream_mix,
    stream_write,
    unit_heads,
)
from strata.ops.quantize import quantized
from strata.ops.select_blocks import RankBlocks
from strata.quants import FORMATS

HEADS, KV_HEADS, DIM, INDEX_HEADS, INDEX_DIM, BUDGET = 24, 2, 256, 4, 128, 512
VALUE_HEADS, KEY_HEADS, STATE_DIM, HIDDEN, STREAMS = 48, 16, 128, 2560, 4
POSITIONS = (0, 32_768, 131_072, 245_760)
TFLOPS, BYTES, CACHE = (
    440e12,
    4.2e12,
    5.5e12,
)  # mma.sync of 16-bit floats; device memory; level-2 cache (assumed)


class Bench:
    """A step of one op at `position`, its big inputs random on the device."""

    def __init__(self, driver: Driver, rows: int, position: int = 0, cells: int = 0):
        self.backend, self.rows = CudaBackend(driver), rows
        self.steps = StepBuffers.create(rows, 1, max(cells, position + rows), rows)
        self.builder = Builder(self.steps, rows, "chunk")
        self.set: dict[Buffer, Any] = {
            self.steps.num_rows: rows,
            self.steps.positions: np.arange(position, position + rows, dtype=np.int32),
            self.steps.page_table: np.arange(self.steps.page_table.shape[1], dtype=np.int32),
        }

    def x(self, width: int, seed: int = 0, scale: float = 1.0) -> Buffer:
        """Rows of normal values that depend on their position."""
        buffer = Buffer(f"x{seed}", (self.rows, width), "f32", "state", live=self.steps.num_rows)
        position = int(self.set[self.steps.positions][0])
        table = np.random.default_rng(seed).standard_normal(1 << 20).astype(np.float32) * np.float32(scale)
        start = position * width % len(table)
        self.set[buffer] = np.resize(np.roll(table, -start), buffer.shape)
        return buffer

    def out(self, y: Buffer) -> Buffer:
        """A copy of y that outlives the step."""
        out = Buffer("out", y.shape, role="output", live=self.steps.num_rows)
        copy_rows(self.builder, y, out)
        return out

    def lowered(self) -> Any:
        """The replay, inputs written."""
        program = self.builder.finish()
        self.backend.reserve(program.arena_bytes)
        replay = self.backend.lower(program)
        for buffer, value in self.set.items():
            array = self.backend.array(buffer)
            if np.isscalar(value):
                array[:] = np.full(buffer.shape, value, np.int32)
            elif value.shape != buffer.shape:  # of pools: one part of a page after another
                pages = max(1, (64 << 20) // (value.nbytes))
                for p in range(0, buffer.shape[0], pages):
                    n = min(pages, buffer.shape[0] - p)
                    array[p : p + n] = np.broadcast_to(value, (n, *value.shape))
            else:
                array[:] = value
        return replay


def delta(driver: Driver, rows: int, position: int) -> Bench:
    b = Bench(driver, rows, position)
    state = Buffer("state", (1, VALUE_HEADS, STATE_DIM, STATE_DIM), "f32", "state")
    width = DeltaState.pending_width(KEY_HEADS, VALUE_HEADS, STATE_DIM, STATE_DIM)
    pending = Buffer("pending", (1, 64, width), "f32", "state")
    b.set[state] = np.zeros(state.shape, np.float32)
    qk = b.x(2 * KEY_HEADS * STATE_DIM, 1, STATE_DIM**-0.5)
    mixed = b.x(2 * KEY_HEADS * STATE_DIM + VALUE_HEADS * STATE_DIM, 2)
    gates = b.x(2 * VALUE_HEADS, 3)
    b.set[gates] = np.abs(b.set[gates]) * np.repeat(np.float32([0.3, -0.05]), VALUE_HEADS)
    b.out(delta_rule(b.builder, qk, mixed, gates, DeltaState(state, pending, KEY_HEADS, True)))
    return b


def pool_of(b: Bench, kv: str, heads: int, dim: int, index: bool) -> StatePool:
    """Pools for every page of the table, filled by repeating one page."""
    pages = b.steps.page_table.shape[1]
    shape = StateShape(1, heads, dim, IndexShape(1, INDEX_DIM, 4) if index else None)
    pool, g = StatePool.create(shape, pages, 1, kv), np.random.default_rng(3)
    for buffer in pool.paged():
        page = buffer.shape[1:]
        if buffer.dtype == "i8":
            b.set[buffer] = g.integers(-127, 128, page).astype(np.int8)
        elif "scales" in buffer.name:
            b.set[buffer] = g.uniform(0.005, 0.02, page).astype(np.float16)
        elif index and buffer is pool.index[0].pooled:
            b.set[buffer] = g.standard_normal(buffer.shape).astype(np.float32)
        else:
            b.set[buffer] = g.standard_normal(page).astype(
                np.float16 if buffer.dtype == "f16" else np.float32
            )
    return pool


def sparse(kv: str) -> Callable[[Driver, int, int], Bench]:
    def make(driver: Driver, rows: int, position: int) -> Bench:
        b = Bench(driver, rows, position, 262_144)
        pool, s = pool_of(b, kv, KV_HEADS, DIM, True), b.steps
        q = b.x(INDEX_HEADS * INDEX_DIM, 4)
        selected = b.builder.rows(BUDGET, "selected", like=q, dtype="i32")
        step = (s.positions, s.sequences, s.page_table)
        b.builder.emit(RankBlocks(*step, q, pool.index[0].pooled, selected, BUDGET, 65_536))
        y = sparse_attention(b.builder, b.x(HEADS * DIM, 5), selected, pool.kv.layers[0], HEADS, 4, DIM**-0.5)
        b.out(y)
        return b

    return make


def dense(
    kv: str, heads: int, kv_heads: int, dim: int, window: int = 0
) -> Callable[[Driver, int, int], Bench]:
    def make(driver: Driver, rows: int, position: int) -> Bench:
        b = Bench(driver, rows, position)
        pool = pool_of(b, kv, kv_heads, dim, False)
        b.out(attention(b.builder, b.x(heads * dim, 5), pool.kv.layers[0], heads, dim**-0.5, window))
        return b

    return make


def vector(width: int, *shape: int) -> Weight:
    data = np.random.default_rng(9).standard_normal(shape or (width,)).astype(np.float32)
    return Weight("w", FORMATS["F32"], shape or (width,), data.view(np.uint8).reshape(-1))


def rowwise(driver: Driver, rows: int, position: int) -> Bench:
    """Convolution, unit heads, norms and streams, one after the other."""
    b = Bench(driver, rows, position)
    channels, wide = 2 * KEY_HEADS * STATE_DIM + VALUE_HEADS * STATE_DIM, STREAMS * HIDDEN
    ring = Buffer("ring", (1, 35, channels), "f32", "state")
    mixed = causal_conv(b.builder, b.x(channels, 1), vector(0, channels, 4), ring)
    unit_heads(b.builder, mixed, KEY_HEADS, STATE_DIM)
    z = b.x(VALUE_HEADS * STATE_DIM, 2)
    quantized(b.builder, gated_norm(b.builder, z, z, vector(STATE_DIM), 1e-6, silu=False))
    residual = b.x(wide, 3)
    normed = grouped_norm(b.builder, residual, vector(wide), STREAMS, 1e-6)
    quantized(b.builder, stream_mix(b.builder, normed, residual, STREAMS))
    b.out(stream_write(b.builder, residual, b.x(HIDDEN, 6), b.x(STREAMS, 7)))
    return b


def floors(name: str, rows: int, position: int) -> str:
    """Microseconds a row: operations at the products' rate, bytes at that of memory or of the cache."""
    seen = position + rows / 2
    if name == "delta":
        flops = 3 * 2 * VALUE_HEADS / 64 * (6.3e6)
        return f"products {flops / TFLOPS * 1e6:.4f}, memory {(64 + 24) * 1024 / BYTES * 1e6:.4f}"
    if name.startswith("sparse"):
        cells = min(2051.0, seen)
        flops, kept = cells * KV_HEADS * 16 * DIM * 2 * 3, cells * KV_HEADS * DIM * 2
        scores = 3 * 2 * INDEX_HEADS * INDEX_DIM * seen / 4
        traffic = kept * (2 if name == "sparse-f16" else 1)
        return (
            f"attention: products {flops / TFLOPS * 1e6:.3f}, cache {traffic / CACHE * 1e6:.3f}; scores: products "
            f"{scores / TFLOPS * 1e6:.3f}, memory {12 * seen / 4 / BYTES * 1e6:.3f}"
        )
    if name.startswith("dense"):
        heads, dim = (8, 256) if "256" in name else (20, 128)
        flops = 4 * heads * dim * (min(seen, 1024) if "window" in name else seen)
        return f"products {flops / TFLOPS * 1e6:.4f}"
    return ""


CASES: dict[str, tuple[Callable[[Driver, int, int], Bench], tuple[tuple[int, int], ...]]] = {
    "delta": (delta, ((512, 0), (8192, 0))),
    "sparse-f16": (sparse("f16"), ((512, 0), (8192, 0), *((8192, p) for p in POSITIONS[1:]))),
    "sparse-int8": (sparse("int8"), ((512, 0), (8192, 0), *((8192, p) for p in POSITIONS[1:]))),
    "dense-f16": (dense("f16", 20, 5, 128), ((512, 0), (2048, 0), (8192, 0))),
    "dense-int8": (dense("int8", 20, 5, 128), ((2048, 0), (2048, 30_720))),
    "dense-256-window": (dense("f16", 8, 2, 256, 1024), ((2048, 0), (2048, 30_720))),
    "rows": (rowwise, ((512, 0), (8192, 0))),
}


def times(b: Bench, repeats: int) -> Iterable[tuple[str, float]]:
    """(kernel, microseconds) summed over its launches."""
    found: dict[str, float] = {}
    replay = b.lowered()
    replay.run()  # a timeline does not copy the step's inputs
    for kind, kernel, us in replay.timeline(repeats):
        name = f"{kernel.split()[0]} ({kind})"
        found[name] = found.get(name, 0.0) + us
    return found.items()


def digest(b: Bench) -> str:
    replay = b.lowered()
    replay.run()
    out = next(x for op in b.builder._ops for x in op.outputs if x.name == "out")
    return hashlib.sha256(np.asarray(b.backend.array(out)).tobytes()).hexdigest()[:16]


def equal(driver: Driver) -> None:
    """Rows 64 .. 575 of a sequence, alone and behind 64 others."""
    for name in ("sparse-f16", "sparse-int8", "dense-f16", "dense-256-window"):
        make = CASES[name][0]
        outs = []
        for first, rows in ((4096, 2048), (4608, 512), (4608, 64)):
            b = make(driver, rows, first)
            b.lowered().run()
            out = next(x for op in b.builder._ops for x in op.outputs if x.name == "out")
            outs.append(np.asarray(b.backend.array(out))[4608 - first :][:64])
        same = [np.array_equal(o, outs[0]) for o in outs]
        finite = bool(np.isfinite(outs[0]).all())
        print(f"equal {name}: {same}, finite {finite}, first {outs[0].ravel()[:3]}", flush=True)


def plain() -> None:
    """The kernels without tensor cores."""
    for module in (lower_state, lower_sparse, lower_attention):
        module.tensor_cores = lambda at: False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}, equal; all when none is given")
    parser.add_argument("--plain", action="store_true", help="kernels without tensor cores, 512 rows at most")
    options = parser.parse_args()
    from strata.backends.cuda.nvidia import NvidiaDriver

    driver = NvidiaDriver(0, Path("build/kernels"))
    if options.plain:
        plain()
    for name in options.names or [*CASES, "equal"]:
        if name == "equal":
            equal(driver)
            continue
        make, sizes = CASES[name]
        for rows, position in sizes:
            if options.plain and (rows > 512 or position > 0) and name != "rows":
                continue
            print(f"{name} rows {rows} position {position}: floors (us a row) {floors(name, rows, position)}")
            for kernel, us in times(make(driver, rows, position), 1 if options.plain else 3):
                print(f"  {kernel:60} {us:12.1f} us {us / rows:9.4f} us a row", flush=True)


if __name__ == "__main__":
    main()
