"""Lowering rules of sparse attention: ranking blocks, attending to the chosen ones."""

from collections.abc import Sequence

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, lower, pointer
from strata.backends.cuda.lower_attention import kv_macros, most_heads, pool_sizes, room, slot_args, turned
from strata.backends.cuda.lower_dense import rows_of
from strata.ops.arithmetic import ATTENTION_SPLIT
from strata.ops.select_blocks import BlockScores, RankBlocks, SelectBlocks
from strata.ops.sparse_attention import SparseAttention

_SELECT_THREADS = 512
_RANK_ROWS = 64  # rows ranked at a time
_SCORE_WARPS, _SCORES_A_WARP = 8, 8
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
    rows = min(op.q.shape[0], _RANK_ROWS)
    scratch = pointer(at.scratch(4 * rows * op.max_blocks))
    buffers = (op.positions, op.sequences, op.page_table, op.q, op.pooled, op.out)
    args = [at.live(op.q), *at.at(*buffers), scratch, *score_sizes(op, op.max_blocks), pointer(at.faults)]
    return [launch("select.cu", "rank_blocks", rows, _SELECT_THREADS, args)]


@lower.register
def _(op: SparseAttention, at: Context) -> list[Launch]:
    return attend(op, at)


def attend(op: SparseAttention, at: Context, gated: Sequence[Arg] = (), turn: bool = False) -> list[Launch]:
    """Launches of sparse.cu; `gated`: addresses of queries with gates and of q8 planes for the gated heads; `turn`:
    heads are turned first."""
    rows = rows_of(op.q, at)
    return [_attend(op, at, row, min(rows - row, _ROWS), gated, turn) for row in range(0, rows, _ROWS)]


def _attend(
    op: SparseAttention, at: Context, row: int, rows: int, gated: Sequence[Arg], turn: bool
) -> Launch:
    num_pages, kv_heads, head_dim = pool_sizes(op.k_pool)
    budget, group = op.selected.shape[-1], op.heads // kv_heads
    splits = -(-(budget * op.ratio + op.ratio - 1) // ATTENTION_SPLIT)
    most = min(most_heads(head_dim), group)
    busy = _BUSY * at.properties.multiprocessors / (splits * kv_heads * rows)
    heads = next((h for h in (4, 2) if h <= most and -(-group // h) >= busy), 1 if busy > group / 2 else most)
    parts = kv_heads * -(-group // heads)
    results = at.scratch(4 * rows * op.heads * splits * (head_dim + 2))
    buffers = (op.positions, op.sequences, op.page_table, op.q, op.selected, op.k_pool, op.v_pool)
    args = [at.live(op.q), *at.at(*buffers, op.k_scales, op.v_scales), *slot_args(op.resident, at)]
    args += [*at.at(op.out), *(gated or [pointer(0)] * 4)]
    args += [pointer(results), pointer(at.counters(rows * parts))]
    args += ints(op.heads, kv_heads, op.page_table.shape[1], num_pages, op.ratio, budget, row, splits)
    args += [*floats(op.scale), pointer(at.faults)]
    macros: list[tuple[str, str | int]] = [
        *kv_macros(op.k_pool, op.v_pool), ("STRATA_HEADS", heads), ("STRATA_DIM", head_dim),
        ("STRATA_GATED", int(bool(gated))), *turned(turn), *([] if op.resident is None else [("STRATA_SLOTS", 1)]),
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
