"""Lowering rules of ops with a state of their own: convolutions, the delta rule, n-grams, index keys."""

import math

import numpy as np

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import (
    Context,
    floats,
    ints,
    launch,
    lower,
    pointer,
    tensor_cores,
    type_macro,
)
from strata.backends.cuda.lower_dense import rows_of
from strata.backends.cuda.lower_heads import THREADS, by_slice, by_value
from strata.ops.conv import CausalConv
from strata.ops.delta_inputs import UnitHeads
from strata.ops.delta_rule import DeltaChunk, DeltaRule, DeltaSettle
from strata.ops.index_keys import CellPositions, IndexKeys
from strata.ops.ngram import NgramGate, NgramRows, TableRows
from strata.ops.step import CHUNK_BLOCK, MAX_STEP_ROWS, PAGE_CELLS

_COLUMN_WARPS = 8
_SEGMENT = 1024  # rows of a prompt whose blocks are prepared at a time
# Values of a head that a thread block takes through the blocks: many, a thread block a multiprocessor, where all
# thread blocks run at once (15 % faster on an H200), else few, two a multiprocessor.
_MANY_COLUMNS, _FEW_COLUMNS = 64, 32
_TABLE_WARPS = 4


@lower.register
def _(op: CausalConv, at: Context) -> list[Launch]:
    channels, kernel = op.weight.shape
    if op.tapped and op.x.shape[0] % CHUNK_BLOCK == 0 and channels % 32 == 0:
        return convolve(op, at, next(n for n in (128, 64, 32) if channels % n == 0))
    step = (op.positions, op.sequences, op.tap_positions, op.tap_slots, op.x)
    args = [at.live(op.x), *at.at(*step), *at.raw(op.weight), *at.at(op.ring, op.out)]
    args += [*ints(channels, kernel, op.dilation, *op.ring.shape[:2], int(op.tapped)), pointer(at.faults)]
    grid = (-(-channels // THREADS), op.x.shape[0] if op.x.shape[0] <= MAX_STEP_ROWS and not op.tapped else 1)
    return [launch("conv.cu", "causal_conv", grid, THREADS, args)]


def convolve(op: CausalConv, at: Context, head: int, heads: UnitHeads | None = None) -> list[Launch]:
    """A prompt's convolution, a warp `head` channels of 16 rows, and the unit heads of its front; then the ring."""
    (channels, kernel), (slots, ring_rows, _), blocks = (
        op.weight.shape,
        op.ring.shape,
        op.x.shape[0] // CHUNK_BLOCK,
    )
    macros = [("STRATA_HEAD", head), ("STRATA_KERNEL", kernel), ("STRATA_DILATION", op.dilation)]
    step = at.at(op.positions, op.sequences)
    args = [at.live(op.x), *step, *at.at(op.x), *at.raw(op.weight), *at.at(op.ring, op.out)]
    args += [
        *at.at(heads.out if heads else None),
        *ints(channels, slots, ring_rows, heads.heads if heads else 0),
    ]
    args += [*floats(heads.scale if heads else 1.0), pointer(at.faults)]
    kept = [at.live(op.x), *step, *at.at(op.tap_positions, op.tap_slots, op.x, op.ring)]
    kept += [*ints(channels, slots, ring_rows), pointer(at.faults)]
    grid = (-(-channels // THREADS), blocks)
    return [
        launch("conv_prompt.cu", "conv_prompt", (channels // head, blocks), 128, args, macros=macros),
        launch("conv_prompt.cu", "conv_keep", grid, THREADS, kept, macros=macros),
    ]


@lower.register
def _(op: DeltaSettle, at: Context) -> list[Launch]:
    args = [at.live(op.positions), *at.at(op.positions, op.sequences, op.commits, op.state, op.pending)]
    return _delta(op, at, args)


@lower.register
def _(op: DeltaRule, at: Context) -> list[Launch]:
    args = [at.live(op.positions), *at.at(op.positions, op.sequences, op.commits, op.state, op.pending)]
    return _delta(op, at, [*args, *at.at(op.qk, op.mixed, op.gates, op.out)])


@lower.register
def _(op: DeltaChunk, at: Context) -> list[Launch]:
    slots, heads, value_dim, key_dim = op.state.shape
    if tensor_cores(at) and key_dim % 64 == 0 and value_dim % 64 == 0 and max(key_dim, value_dim) <= 128:
        return _delta_blocks(op, at)
    args = [at.live(op.positions), *at.at(op.positions, op.sequences, op.commits, op.state, op.pending)]
    rows = at.at(op.qk, op.mixed, op.gates, op.out, op.tap_positions, op.tap_slots)
    sizes = ints(op.key_heads, heads, value_dim, int(op.tiled), slots)
    warps = math.gcd(value_dim, _COLUMN_WARPS)
    args = [*args, *rows, *sizes, pointer(at.faults)]
    macros = [("STRATA_KEY_DIM", key_dim)]
    grid = (value_dim // warps, heads)
    return [launch("delta_chunk.cu", "delta_chunk", grid, 32 * warps, args, macros=macros)]


def _delta_blocks(op: DeltaChunk, at: Context) -> list[Launch]:
    """For every segment of rows what its blocks need before the state is known, then the state through them."""
    slots, heads, value_dim, key_dim = op.state.shape
    blocks = min(op.out.shape[0], _SEGMENT) // CHUNK_BLOCK
    of_block = (
        2 * 4 * CHUNK_BLOCK * key_dim + 4 * CHUNK_BLOCK * value_dim + 4 * (CHUNK_BLOCK + 32)
    )  # HeadBlock::kBytes
    scratch, keys = (
        pointer(at.scratch(blocks * n)) for n in (heads * of_block, op.key_heads * CHUNK_BLOCK * 4 * key_dim)
    )
    macros = [("STRATA_KEY_DIM", key_dim), ("STRATA_VALUE_DIM", value_dim)]
    room = 4 * CHUNK_BLOCK * (key_dim + 8 + 3 * (CHUNK_BLOCK + 8) + 4) + 32
    at_once = heads * value_dim <= _MANY_COLUMNS * at.properties.multiprocessors
    columns = _MANY_COLUMNS if at_once else _FEW_COLUMNS
    passes = 4 * (key_dim + 8) * (2 * CHUNK_BLOCK + columns) + 4 * CHUNK_BLOCK * (columns + 8) + 32
    step = at.at(op.positions, op.sequences, op.commits, op.state, op.pending)
    found = []
    for row in range(0, op.out.shape[0], _SEGMENT):
        sizes = ints(op.key_heads, heads, int(op.tiled))
        args = [at.live(op.positions), *at.at(op.qk, op.mixed, op.gates, op.out), scratch, keys, *sizes]
        found.append(
            launch(
                "delta_prepare.cu", "delta_prepare", (blocks, heads), 256, [*args, *ints(row)], macros=macros,
                shared=room,
            )
        )  # fmt: skip
        args = [at.live(op.positions), *step, scratch, keys, *at.at(op.out, op.tap_positions, op.tap_slots)]
        args += [*sizes, *ints(slots, row, blocks * CHUNK_BLOCK), pointer(at.faults)]
        found.append(
            launch(
                "delta_pass.cu", "delta_pass", (value_dim // columns, heads), 256, args,
                macros=[*macros, ("STRATA_COLUMNS", columns)], shared=passes,
            )
        )  # fmt: skip
    return found


def _delta(op: DeltaSettle | DeltaRule, at: Context, args: list[Arg]) -> list[Launch]:
    slots, heads, value_dim, key_dim = op.state.shape
    sizes = ints(op.key_heads, heads, value_dim, int(op.tiled), slots)
    grid = (-(-value_dim // _COLUMN_WARPS), heads, at.bucket)
    macros = [("STRATA_KEY_DIM", key_dim)]
    args = [*args, *sizes, pointer(at.faults)]
    return [launch("delta.cu", op.kind, grid, 32 * _COLUMN_WARPS, args, macros=macros)]


@lower.register
def _(op: NgramRows, at: Context) -> list[Launch]:
    step = (op.positions, op.sequences, op.tap_positions, op.tap_slots, op.tokens)
    args = [at.live(op.out), *at.at(*step, op.multipliers, op.sizes, op.offsets, op.history, op.out)]
    sizes = (op.multipliers.shape[0], op.sizes.shape[0], op.eos, op.history.shape[0], int(op.tapped))
    box = at.box(op.out)
    args += [*ints(*sizes), pointer(box.head), pointer(box.ids), pointer(box.posts), np.uint64(box.limit_ns)]
    return [launch("ngram.cu", "ngram_rows", 1, THREADS, [*args, pointer(at.faults)])]


@lower.register
def _(op: TableRows, at: Context) -> list[Launch]:
    (rows, width), n, box = op.weight.shape, op.index.shape[-1], at.box(op.index)
    table = [pointer(box.rows)] if box.head else at.raw(op.weight)
    args = [at.live(op.out), *at.at(op.index), *table, *at.at(op.out)]
    room = -(-(op.weight.nbytes // rows + 32) // 16) * 16
    args += [*ints(width, rows, n, room), pointer(box.head), pointer(box.posts), np.uint64(box.limit_ns)]
    grid, macros = -(-op.out.shape[0] * n // _TABLE_WARPS), [type_macro(op.weight.format)]
    return [
        launch(
            "ngram.cu", "table_rows", grid, 32 * _TABLE_WARPS, [*args, pointer(at.faults)], macros=macros,
            shared=_TABLE_WARPS * room,
        )
    ]  # fmt: skip


@lower.register
def _(op: NgramGate, at: Context) -> list[Launch]:
    width = op.value.shape[-1]
    streams = op.key.shape[-1] // width
    args = [at.live(op.out), *at.at(op.key, op.query, op.value, op.out), *ints(width, streams)]
    args += floats(width**-0.5)
    return by_slice("ngram.cu", "ngram_gate", rows_of(op.out, at) * streams, args, 8 * width)


@lower.register
def _(op: CellPositions, at: Context) -> list[Launch]:
    args = [at.live(op.positions), *at.at(op.positions, op.sequences, op.rope_positions, op.cells)]
    args += [*ints(op.cells.shape[0]), pointer(at.faults)]
    return by_value("index.cu", "cell_positions", at.bucket, args)


@lower.register
def _(op: IndexKeys, at: Context) -> list[Launch]:
    step = at.at(op.positions, op.sequences, op.page_table, op.rope_positions, op.x)
    pools = at.at(op.table, op.axes, op.cells, op.raw, op.pooled)
    positions, pairs, _ = op.table.shape
    num_pages, per_page, dim = op.pooled.shape
    sizes = (dim, PAGE_CELLS // per_page, 2 * pairs, positions, op.page_table.shape[1], num_pages)
    args = [at.live(op.x), *step, *at.raw(op.weight), *pools, *ints(*sizes, op.raw.shape[0])]
    args += [*floats(op.eps), pointer(at.faults)]
    return [launch("index.cu", "index_keys", op.x.shape[0], 32, args, shared=4 * dim)]
