"""Lowering rules of keys and values: storing cells, dense attention."""

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, lower, pointer
from strata.backends.cuda.lower_dense import THREADS, rows_of, warps
from strata.ops.arithmetic import ATTENTION_SPLIT
from strata.ops.attention import Attention
from strata.ops.buffers import Buffer
from strata.ops.kv_store import KV_GROUP, KvStore
from strata.ops.rms_norm import RmsNorm
from strata.ops.rope import Rope
from strata.ops.step import PAGE_CELLS

KV_TYPES = {"f32": 0, "f16": 1, "i8": 2}
_HEADS = 4  # query heads that a thread block may take
_RESULT_BYTES = 128 << 20  # of splits; rows beyond it wait for the next launch
_WORKERS = 2  # thread blocks a multiprocessor


@lower.register
def _(op: KvStore, at: Context) -> list[Launch]:
    num_pages, kv_heads, _, head_dim = op.k_pool.shape
    step = at.at(op.positions, op.sequences, op.page_table, op.k, op.v)
    pools = at.at(op.k_pool, op.v_pool, op.k_scales, op.v_scales)
    sizes = ints(kv_heads, head_dim, op.page_table.shape[1], KV_TYPES[op.k_pool.dtype], num_pages)
    groups = -(-head_dim // min(KV_GROUP, head_dim))
    grid = warps(rows_of(op.k, at) * kv_heads * groups * 2)
    args = [at.live(op.k), *step, *pools, pointer(at.faults), *sizes]
    return [launch("kv_store.cu", "kv_store", grid, 128, args)]


def rope_store(
    rotations: tuple[Rope, Rope],
    norms: tuple[RmsNorm | None, RmsNorm | None],
    op: KvStore,
    at: Context,
    keys: bool,
) -> list[Launch]:
    """Queries and keys normed and rotated, keys and values stored; `keys`: are rotated keys read by others."""
    num_pages, kv_heads, _, head_dim = op.k_pool.shape
    (q, k), heads = rotations, rotations[0].x.shape[-1] // head_dim
    sources = [r.x if n is None else n.x for r, n in zip(rotations, norms, strict=True)]
    args = [at.live(q.out), *at.at(q.positions, op.sequences, op.page_table, q.table, *sources, op.v)]
    args += [
        *at.raw(*(None if n is None else n.weight for n in norms)),
        *at.at(q.out, k.out if keys else None),
    ]
    args += [*at.at(op.k_pool, op.v_pool, op.k_scales, op.v_scales), pointer(at.faults)]
    args += ints(heads, kv_heads, head_dim, q.rotary_dim, int(q.style), q.table.shape[0])
    args += ints(op.page_table.shape[1], KV_TYPES[op.k_pool.dtype], num_pages, rows_of(op.k, at))
    args += floats(*(0.0 if n is None else n.eps for n in norms))
    grid = warps(rows_of(op.k, at) * (heads + 2 * kv_heads))
    return [launch("rope_store.cu", "rope_store", grid, 128, args, shared=4 * 4 * head_dim)]


@lower.register
def _(op: Attention, at: Context) -> list[Launch]:
    return attend(op, at)


def attend(op: Attention, at: Context, planes: Buffer | None = None, out: bool = True) -> list[Launch]:
    """Attention to floats (`out`) and, where given, to the q8 rows `planes`."""
    num_pages, kv_heads, _, head_dim = op.k_pool.shape
    pages, rows, group = op.page_table.shape[1], rows_of(op.q, at), op.heads // kv_heads
    splits = _splits(pages * PAGE_CELLS, op.window)
    heads = min(most_heads(head_dim), group)
    per_row = op.heads * splits * (head_dim + 2) * 4
    at_once = max(1, min(rows, _RESULT_BYTES // per_row))
    parts = kv_heads * -(-group // heads)
    workers = max(1, min(splits, -(-_WORKERS * at.properties.multiprocessors // (at_once * parts))))
    head = [at.live(op.q), *at.at(op.positions, op.sequences, op.page_table, op.q, op.k_pool, op.v_pool)]
    head += at.at(op.k_scales, op.v_scales, op.out if out else None)
    head += at.q8(planes) if planes is not None else [pointer(0)] * 3
    head += [pointer(at.scratch(at_once * per_row)), pointer(at.counters(rows * parts)), pointer(at.faults)]
    head += ints(op.heads, kv_heads, pages, op.window, num_pages)
    macros = [
        ("STRATA_KV", KV_TYPES[op.k_pool.dtype]),
        ("STRATA_HEADS", heads),
        ("STRATA_DIM", head_dim),
    ]
    return [
        launch(
            "attention.cu",
            "attention",
            (workers, parts, min(at_once, rows - row)),
            THREADS,
            [*head, *ints(row, splits), *floats(op.scale)],
            macros=macros,
            shared=room(head_dim, heads),
        )
        for row in range(0, rows, at_once)
    ]


def _sets(head_dim: int) -> int:
    """Split::kSets of split.cuh: sets of threads that share a cell's values."""
    return 1 << min(THREADS // (head_dim // 8), 32).bit_length() - 1


def most_heads(head_dim: int) -> int:
    """Query heads of a thread block, as far as its lanes' sums stay in registers."""
    return max(1, min(_HEADS, 8 * _sets(head_dim) // 32))


def room(head_dim: int, heads: int) -> int:
    """Bytes of Split::Room."""
    values = heads * head_dim * (1 + _sets(head_dim)) + ATTENTION_SPLIT * (heads + 1) + 2 * heads
    return -(-4 * values // 16) * 16


def _splits(cells: int, window: int) -> int:
    """Most splits that a row's visible cells touch; a window may begin inside one."""
    seen = min(window + ATTENTION_SPLIT - 1, cells) if window else cells
    return -(-seen // ATTENTION_SPLIT)
