"""Lowering rules of norms, gates, residual streams and sparse attention."""

from strata.backends.cpu.lower import Addresses, Record, kv_types, lower
from strata.ops.copy_rows import CopyColumns
from strata.ops.gates import GatedNorm, SigmoidGate
from strata.ops.grouped_norm import GroupedNorm
from strata.ops.head_norm import HeadNormRope
from strata.ops.index_keys import CellPositions, IndexKeys
from strata.ops.kv_fetch import KvFetch
from strata.ops.kv_store import cell_values
from strata.ops.select_blocks import BlockScores, RankBlocks, SelectBlocks
from strata.ops.sparse_attention import SparseAttention
from strata.ops.step import PAGE_CELLS
from strata.ops.streams import ScaledSilu, StreamMix, StreamTile, StreamWrite


@lower.register
def _(op: GroupedNorm, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.x), at.weight(op.weight), at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.x.shape[-1], op.groups], [op.eps])


@lower.register
def _(op: StreamTile, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.x), at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.x.shape[-1], op.streams], [])


@lower.register
def _(op: ScaledSilu, at: Addresses) -> Record:
    ptrs = [at.live(op.out), at.buffer(op.x), at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.x.shape[-1], op.divisor], [])


@lower.register
def _(op: StreamMix, at: Addresses) -> Record:
    ptrs = [at.live(op.out), *map(at.buffer, (op.x, op.gate, op.out))]
    return Record(op.kind, ptrs, [op.out.shape[-1], op.streams], [])


@lower.register
def _(op: StreamWrite, at: Addresses) -> Record:
    ptrs = [at.live(op.out), *map(at.buffer, (op.residual, op.y, op.inject, op.out))]
    return Record(op.kind, ptrs, [op.y.shape[-1], op.inject.shape[-1]], [])


@lower.register
def _(op: HeadNormRope, at: Addresses) -> Record:
    head_dim, (positions, pairs, _) = op.weight.shape[0], op.table.shape
    step = map(at.buffer, (op.positions, op.table, op.axes, op.x))
    ptrs = [at.live(op.out), *step, at.weight(op.weight), at.buffer(op.out)]
    dims = [op.x.shape[-1] // op.stride, head_dim, op.stride, 2 * pairs, positions]
    return Record(op.kind, ptrs, dims, [op.eps])


@lower.register
def _(op: SigmoidGate, at: Addresses) -> Record:
    ptrs = [at.live(op.out), *map(at.buffer, (op.x, op.gate, op.out))]
    return Record(op.kind, ptrs, [op.x.shape[-1] // op.head_dim, op.head_dim, op.stride, op.offset], [])


@lower.register
def _(op: GatedNorm, at: Addresses) -> Record:
    head_dim = op.weight.shape[0]
    ptrs = [at.live(op.out), at.buffer(op.x), at.buffer(op.z), at.weight(op.weight), at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.x.shape[-1] // head_dim, head_dim, int(op.silu)], [op.eps])


@lower.register
def _(op: CopyColumns, at: Addresses) -> Record:
    ptrs = [at.live(op.x), at.buffer(op.x), at.buffer(op.out)]
    return Record(op.kind, ptrs, [op.x.shape[-1], op.out.shape[-1], op.column, op.out_column, op.width], [])


@lower.register
def _(op: CellPositions, at: Addresses) -> Record:
    buffers = (op.positions, op.sequences, op.rope_positions, op.cells)
    return Record(op.kind, [at.live(op.positions), *map(at.buffer, buffers)], [op.cells.shape[0]], [])


@lower.register
def _(op: IndexKeys, at: Addresses) -> Record:
    step = map(at.buffer, (op.positions, op.sequences, op.page_table, op.rope_positions, op.x))
    pools = map(at.buffer, (op.table, op.axes, op.cells, op.raw, op.pooled))
    positions, pairs, _ = op.table.shape
    num_pages, per_page, dim = op.pooled.shape
    dims = [dim, PAGE_CELLS // per_page, 2 * pairs, positions, op.page_table.shape[1], num_pages]
    ptrs = [at.live(op.x), *step, at.weight(op.weight), *pools]
    return Record(op.kind, ptrs, [*dims, op.raw.shape[0]], [op.eps])


@lower.register
def _(op: BlockScores, at: Addresses) -> Record:
    return _scores(op, at, op.out.shape[-1])


@lower.register
def _(op: RankBlocks, at: Addresses) -> Record:
    return _scores(op, at, op.max_blocks)


def _scores(op: BlockScores, at: Addresses, most: int) -> Record:
    buffers = (op.positions, op.sequences, op.page_table, op.q, op.pooled, op.out)
    num_pages, _, dim = op.pooled.shape
    dims = [
        op.q.shape[-1] // dim,
        dim,
        op.ratio,
        op.budget,
        most,
        op.page_table.shape[1],
        num_pages,
    ]
    return Record(op.kind, [at.live(op.q), *map(at.buffer, buffers)], dims, [])


@lower.register
def _(op: SelectBlocks, at: Addresses) -> Record:
    ptrs = [at.live(op.out), *map(at.buffer, (op.positions, op.scores, op.out))]
    return Record(op.kind, ptrs, [op.out.shape[-1], op.ratio, op.scores.shape[-1]], [])


@lower.register
def _(op: SparseAttention, at: Addresses) -> Record:
    num_pages, kv_heads, *_ = op.k_pool.shape
    buffers = (op.positions, op.sequences, op.page_table, op.q, op.selected, op.k_pool, op.v_pool)
    scales = [at.optional(op.k_scales), at.optional(op.v_scales)]
    dims = [op.heads, kv_heads, cell_values(op.k_pool), op.page_table.shape[1], *kv_types(op), num_pages]
    ptrs = [at.live(op.q), *map(at.buffer, buffers), *scales, at.buffer(op.out)]
    r = op.resident
    slots = [None] * 5 if r is None else [r.k, r.v, r.k_scales, r.v_scales, r.table]
    ptrs += [at.optional(b) for b in slots]
    return Record(op.kind, ptrs, [*dims, op.ratio, op.selected.shape[-1]], [op.scale])


@lower.register
def _(op: KvFetch, at: Addresses) -> Record:
    num_pages, kv_heads, *_ = op.k_pool.shape
    step = (op.positions, op.sequences, op.page_table, op.selected, op.k_pool, op.v_pool)
    ptrs = [at.live(op.positions), *map(at.buffer, step), at.optional(op.k_scales), at.optional(op.v_scales)]
    ptrs += [at.buffer(op.k_slots), at.buffer(op.v_slots), at.optional(op.k_slot_scales)]
    ptrs += [at.optional(op.v_slot_scales), *map(at.buffer, (op.table, op.clock, op.counts))]
    dims = [kv_heads, cell_values(op.k_pool), op.page_table.shape[1], *kv_types(op), num_pages, op.ratio]
    return Record(op.kind, ptrs, [*dims, op.selected.shape[-1], op.k_slots.shape[0]], [op.link_ns_per_byte])
