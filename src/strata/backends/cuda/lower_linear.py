"""Lowering rules of products with quantised and float matrices, rows 1 to 32."""

import math
from collections.abc import Sequence

import numpy as np

from strata.backends.cuda import lower_int8, lower_wide, lower_wide_float
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.grids import TABLE_WORDS
from strata.backends.cuda.lower import FILE, Context, ints, launch, lower, pointer, type_macro
from strata.backends.cuda.lower_dense import rows_of
from strata.backends.cuda.lower_stream import stream
from strata.backends.cuda.pattern import Product
from strata.backends.cuda.segments import (
    PAD_BYTES,
    SHORT,
    blocks_ahead,
    longest_segment,
    segment_count,
    segment_length,
)
from strata.ops.buffers import Buffer
from strata.ops.linear import LinearF, LinearQ

_ROWS = (1, 2, 4, 8)  # rows a kernel takes at once
_THREADS = 256  # a thread block; fewer lose (docs/measurements.md)
_ROW_THREADS = (256, 128, 64)  # of linear_row.cu, the first that is balanced
_ROW_BYTES = 4096  # a warp's ring of linear_row.cu
# Threads and stages of products_stream.cu, for more thread blocks than run at once.
_RINGS = ((256, 3), (256, 2))
_MORE_THREADS = 320  # of linear_q.cu, so that one wave is enough
_MOST_HALF = 8  # blocks of half a segment that a lane holds
_BALANCED = 0.9  # share of the time that multiprocessors have work
_FEW_ROWS = 2  # that linear_row.cu takes
PAIR_THREADS = 512
PAIR_STAGES: Sequence[int] = (8, 6, 4, 3)  # of linear_pairs.cu, the first that fit; none: not used
# By the most rows that it takes, weight rows of a warp of linear_pairs.cu; beyond the last it is not used. More than
# one row: not measured.
PAIRS: dict[int, int] = {1: 2, 3: 2, 8: 4}
PAIR_BLOCKS = 1  # thread blocks a multiprocessor of it at most
_PAIR_STEPS, _PAIR_PAD = 8, 64  # kSteps, and kApart beyond a chunk
_STAGE_VALUES = 8192  # kStage of linear_f.cu, of all rows
MOST_MATRICES = 3  # of one launch


def balanced_threads(sizes: Sequence[int], rows_a_warp: int, at: Context) -> int:
    """Threads a thread block, so that all multiprocessors end at about the same time."""

    def share(threads: int) -> float:
        blocks = sum(-(-n // (threads // 32 * rows_a_warp)) for n in sizes) / at.properties.multiprocessors
        return blocks / math.ceil(blocks)

    return next((t for t in _ROW_THREADS if share(t) >= _BALANCED), max(_ROW_THREADS, key=share))


def half_segment(k: int, rows: int) -> int:
    """Blocks of half a segment, where two lanes share one (relay.cuh): long segments of few rows; else 0."""
    half = -(-longest_segment(k) // 2)
    long = segment_count(k) == 16 and longest_segment(k) > SHORT
    return half if long and half <= _MOST_HALF and rows <= 2 else 0


def shared_bytes(name: str, k: int, rows: int, threads: int = _THREADS) -> int:
    """Dynamic shared memory of linear_q."""
    row = k + PAD_BYTES * segment_count(k) + k // 32 * 8
    return 4 * TABLE_WORDS.get(name, 0) + 4 * threads * rows + rows * row


def one_wave(weight_rows: int, at: Context) -> int:
    """Threads a thread block where a warp takes a weight row and two thread blocks stay on a multiprocessor: more where
    all of them then run at once, which the usual number would not."""
    most = 2 * at.properties.multiprocessors
    usual, more = _THREADS // 32, _MORE_THREADS // 32
    return _MORE_THREADS if -(-weight_rows // usual) > most >= -(-weight_rows // more) else _THREADS


def quantised(ops: Sequence[LinearQ], at: Context) -> list[Launch]:
    """One launch of up to three products of the same rows with matrices of one format; of a chunk's rows, more."""
    if lower_wide.applies(at):
        return lower_int8.products(ops, at) if lower_int8.applies(at) else lower_wide.products(ops, at)
    products = [Product(op.weight, op.out) for op in ops]
    return [q8_products(at, at.live(ops[0].out), at.q8(ops[0].x), rows_of(ops[0].out, at), products)]


def q8_products(
    at: Context, live: Arg, q8: Sequence[Arg], rows: int, products: Sequence[Product], each: int = 1
) -> Launch:
    """Up to three products of `rows` q8 rows with matrices of one format; `each`: of the rows, how many each live one
    stands for."""
    fmt, k = products[0].weight.format, products[0].weight.shape[1]
    room = [m for m in _ROWS if m == 1 or shared_bytes(fmt.name, k, m) <= at.properties.shared]
    m = next((m for m in room if m >= rows), room[-1])
    segments = segment_count(k)
    macros: list[tuple[str, str | int]] = [
        type_macro(fmt),
        ("STRATA_ROWS", m),
        ("STRATA_SEGMENTS", segments),
        ("STRATA_AHEAD", blocks_ahead(k)),
        ("STRATA_LENGTH", segment_length(k)),
        ("STRATA_HALF", half_segment(k, m)),
    ]
    rows_a_warp, threads = 32 // segments, _THREADS
    if half_segment(k, m):
        rows_a_warp, threads = 1, one_wave(sum(p.weight.shape[0] for p in products), at)
    if threads != _THREADS:
        macros.append(("STRATA_THREADS", threads))
    if each != 1:
        macros.append(("STRATA_EACH", each))
    blocks_of = threads // 32 * rows_a_warp
    named = [(p.weight.shape[0], at.packed(p.weight), p.out) for p in products]
    matrices, blocks = _matrices(named, blocks_of, at)
    shared = shared_bytes(fmt.name, k, m, threads)
    many = rows == 1 and blocks > 2 * at.properties.multiprocessors
    if many and (streamed := stream(at, live, q8, at.at(None), rows, products, _RINGS)):
        return streamed
    grid, args = (blocks, -(-rows // m)), [live, *q8, *matrices, *ints(k)]
    return launch("linear_q.cu", "linear_q", grid, threads, args, macros=macros, shared=shared)


def floating(ops: Sequence[LinearF], at: Context, scales: Arg | None = None) -> list[Launch]:
    """One launch of up to three products of the same float rows with matrices of one type; of a chunk's rows, more.
    `scales`: of the rows, where lower_wide_float takes them and somebody knows them."""
    if all(lower_wide_float.applies(op, at) for op in ops):
        return lower_wide_float.products(ops, at, scales)
    fmt, k, rows = ops[0].weight.format, ops[0].weight.shape[1], rows_of(ops[0].out, at)
    m = next((m for m in _ROWS if m >= rows), _ROWS[-1])
    macros: list[tuple[str, str | int]] = [type_macro(fmt), ("STRATA_ROWS", m)]
    sizes = [op.weight.shape[0] for op in ops]
    named = [(n, pointer(at.weight(op.weight, FILE)), op.out) for n, op in zip(sizes, ops, strict=True)]
    x, steps = [at.live(ops[0].out), *at.at(ops[0].x)], ints(k, k // 32 if k % 8 == 0 else 0)
    if streamed := _pairs(ops, rows, at):
        return [streamed]
    if m <= _FEW_ROWS:
        threads = balanced_threads(sizes, 1, at)
        matrices, blocks = _matrices(named, threads // 32, at)
        entry, shared = "linear_row", threads // 32 * _ROW_BYTES
    else:
        threads = _THREADS
        matrices, blocks = _matrices(named, threads // 8, at)
        entry, shared = "linear_f", 4 * m * (_STAGE_VALUES // m // 32 * 32)
    grid, args = (blocks, -(-rows // m)), [*x, *matrices, *steps]
    return [launch(f"{entry}.cu", entry, grid, threads, args, macros=macros, shared=shared)]


def _pairs(ops: Sequence[LinearF], rows: int, at: Context) -> Launch | None:
    """Few rows' products by thread blocks that stay; None where weight rows are odd or there is no room."""
    fmt, k = ops[0].weight.format, ops[0].weight.shape[1]
    together = next((t for most, t in sorted(PAIRS.items()) if most >= rows), 0)
    if not together or k % 32 or any(op.weight.shape[0] % together for op in ops):
        return None
    value = fmt.block_bytes // fmt.block_values
    apart = 32 * _PAIR_STEPS * value + (_PAIR_PAD if together == 4 and value == 2 else 0)
    for stages in PAIR_STAGES:
        shared = 4 * rows * k + PAIR_THREADS // 32 * stages * together * apart
        blocks = min((at.properties.shared + 1024) // (shared + 1024), PAIR_BLOCKS)
        if blocks and shared <= at.properties.shared:
            break
    else:
        return None
    matrices, _ = _matrices(
        [(op.weight.shape[0], pointer(at.weight(op.weight, FILE)), op.out) for op in ops], 1, at
    )
    args = [at.live(ops[0].out), *at.at(ops[0].x), *matrices]
    macros: list[tuple[str, str | int]] = [
        type_macro(fmt), ("STRATA_ROWS", rows), ("STRATA_TOGETHER", together), ("STRATA_STAGES", stages),
        ("STRATA_BLOCKS", blocks), ("STRATA_THREADS", PAIR_THREADS), ("STRATA_K", k),
    ]  # fmt: skip
    grid = at.properties.multiprocessors * blocks
    return launch("linear_pairs.cu", "linear_pairs", grid, PAIR_THREADS, args, macros=macros, shared=shared)


def _matrices(
    found: Sequence[tuple[int, np.uint64, Buffer]], each: int, at: Context
) -> tuple[list[Arg], int]:
    """Arguments w, y, n of three matrices, and the thread blocks of all, each of `each` weight rows."""
    args: list[Arg] = []
    for n, w, y in found:
        args += [w, *at.at(y), *ints(n)]
    args += [pointer(0), pointer(0), *ints(0)] * (MOST_MATRICES - len(found))
    return args, sum(-(-n // each) for n, _, _ in found)


@lower.register
def _(op: LinearQ, at: Context) -> list[Launch]:
    return quantised([op], at)


@lower.register
def _(op: LinearF, at: Context) -> list[Launch]:
    return floating([op], at)
