"""Lowering rules of sparse attention: ranking blocks, attending to the chosen ones."""

from collections.abc import Sequence

from strata.backends.cuda.cells import pool_cells, stage_cells
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, lower, pointer, tensor_cores
from strata.backends.cuda.lower_attention import (
    KV_TYPES,
    kv_macros,
    most_heads,
    of_prompt,
    pool_sizes,
    room,
    slot_args,
    turned,
)
from strata.backends.cuda.lower_dense import rows_of
from strata.ops.arithmetic import ATTENTION_SPLIT
from strata.ops.select_blocks import BlockScores, RankBlocks, SelectBlocks
from strata.ops.sparse_attention import SparseAttention
from strata.ops.step import CHUNK_BLOCK

_SELECT_THREADS = 512
_RANK_ROWS = 64  # rows ranked at a time
_SCORE_WARPS, _SCORES_A_WARP = 8, 8
_SCORE_BYTES = 128 << 20  # of a prompt's rows; those beyond wait for the next launches
_LISTED_WORDS = 512  # kWords of sparse_prompt.cu
_ROWS_TOGETHER = {"f16": 2, "i8": 2}  # rows that share the cells they selected, by what registers hold
_SCORE_TILE, _SELECT_BINS = 128, 2048  # kTile, kBins of select_prompt.cu
_BUSY = 0.75  # thread blocks a multiprocessor, below which a thread block takes fewer heads
_ROWS = 32  # rows of a launch: bounds the splits' results


def score_sizes(op: BlockScores, stride: int) -> list[Arg]:
    num_pages, _, dim = op.pooled.shape
    heads = op.q.shape[-1] // dim
    return ints(heads, dim, op.ratio, op.budget, stride, op.page_table.shape[1], num_pages)


@lower.register
def _(op: BlockScores, at: Context) -> list[Launch]:
    stride = op.out.shape[-1]
    buffers = (op.positions, op.sequences, op.page_table, op.q, op.pooled, op.out)
    args = [at.live(op.q), *at.at(*buffers), *score_sizes(op, stride), pointer(at.faults)]
    most = at.properties.multiprocessors * 8
    grid = (max(1, min(most, -(-stride // (_SCORE_WARPS * _SCORES_A_WARP)))), op.q.shape[0])
    return [launch("select.cu", "block_scores", grid, 32 * _SCORE_WARPS, args)]


@lower.register
def _(op: SelectBlocks, at: Context) -> list[Launch]:
    rows, stride = op.scores.shape
    args = [at.live(op.out), *at.at(op.positions, op.scores, op.out)]
    args += [*ints(op.out.shape[-1], op.ratio, stride), pointer(at.faults)]
    return [launch("select.cu", "select_blocks", rows, _SELECT_THREADS, args)]


@lower.register
def _(op: RankBlocks, at: Context) -> list[Launch]:
    if tensor_cores(at) and op.q.shape[0] % CHUNK_BLOCK == 0 and op.pooled.shape[-1] in (64, 128):
        return _rank_chunk(op, at)
    rows = min(op.q.shape[0], _RANK_ROWS)
    scratch = pointer(at.scratch(4 * rows * op.max_blocks))
    buffers = (op.positions, op.sequences, op.page_table, op.q, op.pooled, op.out)
    args = [at.live(op.q), *at.at(*buffers), scratch, *score_sizes(op, op.max_blocks), pointer(at.faults)]
    return [launch("select.cu", "rank_blocks", rows, _SELECT_THREADS, args)]


def _rank_chunk(op: RankBlocks, at: Context) -> list[Launch]:
    """As many rows at a time as there is room for their scores."""
    stride, dim = -(-op.max_blocks // 32) * 32, op.pooled.shape[-1]
    rows = min(op.q.shape[0], max(_SCORE_BYTES // (4 * stride) // CHUNK_BLOCK, 1) * CHUNK_BLOCK)
    scores, most = pointer(at.scratch(4 * rows * stride)), pointer(at.counters(rows))
    buffers = (op.positions, op.sequences, op.page_table, op.q, op.pooled)
    head = [at.live(op.q), *at.at(*buffers), scores, most]
    macros = [("STRATA_DIM", dim)]
    found = []
    for row in range(0, op.q.shape[0], rows):
        count = min(rows, op.q.shape[0] - row)
        sizes = score_sizes(op, stride)
        args = [*head, sizes[0], *sizes[2:], *ints(row), pointer(at.faults)]
        grid = -(-stride // _SCORE_TILE), count // CHUNK_BLOCK
        shared = 4 * _SCORE_TILE * (dim + 8)
        found.append(
            launch("select_prompt.cu", "prompt_scores", grid, 256, args, macros=macros, shared=shared)
        )
        args = [at.live(op.q), *at.at(op.positions), scores, most, *at.at(op.out)]
        args += [*ints(op.budget, op.ratio, stride, row), pointer(at.faults)]
        shared = 4 * (_SELECT_BINS + stride // 32)
        found.append(
            launch(
                "select_prompt.cu",
                "prompt_select",
                count,
                _SELECT_THREADS,
                args,
                macros=macros,
                shared=shared,
            )
        )
    return found


@lower.register
def _(op: SparseAttention, at: Context) -> list[Launch]:
    together = _rows_together(op, at) if of_prompt(op, at) else 0
    return [_attend_chunk(op, at, together)] if together else attend(op, at)


def _rows_together(op: SparseAttention, at: Context) -> int:
    """Neighbouring rows of a prompt that a thread block takes; 0 where the device has no room for one."""
    if op.ratio not in (2, 4, 8, 16) or op.heads // op.k_pool.shape[1] > 32:
        return 0
    rows = _ROWS_TOGETHER[op.k_pool.dtype]
    while rows and _prompt_room(op, rows) > at.properties.shared:
        rows //= 2
    return rows


def _prompt_room(op: SparseAttention, rows: int) -> int:
    """Bytes of Room of sparse_prompt.cu and its entries."""
    dim, tile = op.k_pool.shape[-1], CHUNK_BLOCK // op.ratio
    heads = -(-rows * op.heads // op.k_pool.shape[1] // 16) * 16
    keys = max(2 * CHUNK_BLOCK * (dim + 8), 4 * rows * _LISTED_WORDS)
    halves = 2 * (dim + 8) * (CHUNK_BLOCK + 2 * rows * op.heads // op.k_pool.shape[1])
    scales = 2 * 4 * (dim if op.k_pool.dtype == "i8" else CHUNK_BLOCK)
    rest = 4 * heads * (CHUNK_BLOCK + 4) + scales + -(-4 * (2 * tile + 8 * heads) // 16) * 16 + 16
    return keys + halves + rest + 4 * (rows * (op.selected.shape[-1] + 1) + tile)


def _attend_chunk(op: SparseAttention, at: Context, together: int) -> Launch:
    """All rows in one launch, a thread block some neighbouring rows and a KV head."""
    _, kv_heads, _, dim = op.k_pool.shape
    cells = stage_cells(op, at) or pool_cells(op, at)
    args = [at.live(op.q), *at.at(op.positions), cells.sequences, cells.page_table]
    args += [*at.at(op.q, op.selected), *cells.pools, *at.at(op.out)]
    args += ints(kv_heads, op.page_table.shape[1], cells.num_pages, op.selected.shape[-1])
    args += [*floats(op.scale), pointer(at.faults)]
    macros = [
        ("STRATA_KV", KV_TYPES[op.k_pool.dtype]), ("STRATA_DIM", dim), ("STRATA_QUERIES", together),
        ("STRATA_GROUP", op.heads // kv_heads), ("STRATA_RATIO", op.ratio),
    ]  # fmt: skip
    grid = kv_heads, rows_of(op.q, at) // together
    shared = _prompt_room(op, together)
    return launch("sparse_prompt.cu", "sparse_prompt", grid, 128, args, macros=macros, shared=shared)


def attend(op: SparseAttention, at: Context, gated: Sequence[Arg] = (), turn: bool = False) -> list[Launch]:
    """Launches of sparse.cu; `gated`: addresses of queries with gates and of q8 planes for the gated heads; `turn`:
    heads are turned first."""
    rows = rows_of(op.q, at)
    return [_attend(op, at, row, min(rows - row, _ROWS), gated, turn) for row in range(0, rows, _ROWS)]


def _attend(
    op: SparseAttention, at: Context, row: int, rows: int, gated: Sequence[Arg], turn: bool
) -> Launch:
    _, kv_heads, head_dim = pool_sizes(op.k_pool)
    budget, group = op.selected.shape[-1], op.heads // kv_heads
    splits = -(-(budget * op.ratio + op.ratio - 1) // ATTENTION_SPLIT)
    most = min(most_heads(head_dim), group)
    busy = _BUSY * at.properties.multiprocessors / (splits * kv_heads * rows)
    heads = next((h for h in (4, 2) if h <= most and -(-group // h) >= busy), 1 if busy > group / 2 else most)
    parts = kv_heads * -(-group // heads)
    results = at.scratch(4 * rows * op.heads * splits * (head_dim + 2))
    cells = stage_cells(op, at) or pool_cells(op, at)
    args = [at.live(op.q), *at.at(op.positions), cells.sequences, cells.page_table]
    args += [*at.at(op.q, op.selected), *cells.pools, *slot_args(cells.resident, at)]
    args += [*at.at(op.out), *(gated or [pointer(0)] * 4)]
    args += [pointer(results), pointer(at.counters(rows * parts))]
    args += ints(op.heads, kv_heads, op.page_table.shape[1], cells.num_pages, op.ratio, budget, row, splits)
    args += [*floats(op.scale), pointer(at.faults)]
    macros: list[tuple[str, str | int]] = [
        *kv_macros(op.k_pool, op.v_pool), ("STRATA_HEADS", heads), ("STRATA_DIM", head_dim),
        ("STRATA_GATED", int(bool(gated))), *turned(turn), *([] if cells.resident is None else [("STRATA_SLOTS", 1)]),
    ]  # fmt: skip
    shared = room(head_dim, heads)
    return launch(
        "sparse.cu",
        "sparse_attention",
        (splits, parts, rows),
        256,
        args,
        macros=macros,
        shared=shared,
        ahead=True,
    )
