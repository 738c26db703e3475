"""Lowering rule of kv_fetch: which groups of cells are missing, slots for them, their copies from RAM."""

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, lower, pointer
from strata.backends.cuda.lower_dense import rows_of
from strata.ops.buffers import NUMPY_DTYPES, Buffer
from strata.ops.kv_fetch import KvFetch
from strata.ops.step import PAGE_CELLS

_RESOLVE_THREADS = 512  # kThreads of kv_fetch.cu
_COPY_WARPS = 8
_BUSY = 2  # thread blocks a multiprocessor that copy at most


@lower.register
def _(op: KvFetch, at: Context) -> list[Launch]:
    if at.staged is not None:
        return at.staged.fetch(op, at)
    num_pages, kv_heads = op.k_pool.shape[:2]
    rows, budget, slots = rows_of(op.selected, at), op.selected.shape[-1], op.k_slots.shape[0]
    most = min(rows * (budget + 1), num_pages * PAGE_CELLS // op.ratio)
    missing, found = pointer(at.scratch(8 * most)), pointer(at.scratch(8))
    sizes = [cell_bytes(b) for b in (op.k_pool, op.v_pool, op.k_scales, op.v_scales)]
    head = [at.live(op.selected), *at.at(op.positions, op.sequences, op.page_table, op.selected, op.table)]
    places = ints(op.page_table.shape[1], num_pages, op.ratio, budget)
    resolve = [*head, *at.at(op.clock, op.counts), pointer(at.counters(3)), missing, found, *places]
    resolve += [*ints(slots, sum(sizes) * kv_heads * op.ratio), pointer(at.faults)]
    copy = [*head, *at.at(op.counts), missing, found]
    copy += at.at(op.k_pool, op.v_pool, op.k_scales, op.v_scales)
    copy += at.at(op.k_slots, op.v_slots, op.k_slot_scales, op.v_slot_scales)
    copy += [*places, *ints(kv_heads, *sizes), *floats(op.link_ns_per_byte)]
    blocks = min(_BUSY * at.properties.multiprocessors, -(-most * kv_heads * 2 // _COPY_WARPS))
    grid = -(-rows * (budget + 1) // _RESOLVE_THREADS)
    return [
        launch("kv_fetch.cu", "kv_resolve", grid, _RESOLVE_THREADS, resolve),
        launch("kv_fetch.cu", "kv_copy", blocks, 32 * _COPY_WARPS, copy),
    ]


def cell_bytes(pool: Buffer | None) -> int:
    """Bytes of a head's cell in a plane."""
    return 0 if pool is None else pool.shape[-1] * NUMPY_DTYPES[pool.dtype]().itemsize
