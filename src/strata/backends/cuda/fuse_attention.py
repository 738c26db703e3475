"""Sublayers of gated attention (models/gated_attention.py), and the head's reading of the streams."""

from dataclasses import dataclass, replace

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.fuse import Lowering
from strata.backends.cuda.fuse_sublayer import match_streams, read, write
from strata.backends.cuda.lower import Context, floats, ints, launch, lower, pointer
from strata.backends.cuda.lower_attention import attend as attend_all
from strata.backends.cuda.lower_attention import kv_macros, pool_sizes, slot_args, slot_ratio
from strata.backends.cuda.lower_drafts import linear_some
from strata.backends.cuda.lower_products import product_write, products
from strata.backends.cuda.lower_sparse import attend, score_sizes
from strata.backends.cuda.pattern import Pattern, Product, require, sublayer
from strata.ops.attention import Attention
from strata.ops.buffers import Buffer
from strata.ops.gates import SigmoidGate
from strata.ops.hadamard import Hadamard
from strata.ops.head_norm import HeadNormRope
from strata.ops.index_keys import IndexKeys
from strata.ops.kv_fetch import KvFetch
from strata.ops.kv_store import KvStore, cell_values
from strata.ops.linear import LinearQ
from strata.ops.linear_some import LinearSome
from strata.ops.quantize import Quantize
from strata.ops.select_blocks import BlockScores, SelectBlocks
from strata.ops.sparse_attention import SparseAttention
from strata.ops.step import PAGE_CELLS

_INPUT_WARPS = 4
_SELECT_THREADS = 512
_SELECT_BINS, _SELECT_LISTED = 4096, 4096  # kBins, kListed of select.cu


@dataclass(frozen=True)
class _Inputs:
    """The ops that one launch of attention_inputs.cu stands for."""

    q: HeadNormRope
    q_out: Buffer  # queries as attention takes them
    k: HeadNormRope
    v: Buffer  # values as they come
    store: KvStore
    index: tuple[IndexKeys, HeadNormRope] | None  # keys and queries, where an indexer chooses cells

    def launch(self, at: Context) -> Launch:
        """A warp a head."""
        q, k, store = self.q, self.k, self.store
        num_pages, kv_heads, dim = pool_sizes(store.k_pool)
        heads, (positions, pairs, _) = q.x.shape[-1] // q.stride, q.table.shape
        step = (store.positions, store.sequences, store.page_table, q.positions, q.table, q.axes)
        args = [
            at.live(q.out),
            *at.at(*step, q.x),
            *at.raw(q.weight),
            *at.at(self.q_out, k.x),
            *at.raw(k.weight),
        ]
        args += at.at(self.v, store.k_pool, store.v_pool, store.k_scales, store.v_scales)
        args += slot_args(store.resident, at)
        index_heads, index_dim, ratio, slots, index = self._index(at)
        args += index
        room = max(dim, index_dim)
        sizes = (heads, kv_heads, 2 * pairs, positions, store.page_table.shape[1], num_pages)
        args += ints(*sizes, index_heads, index_dim, ratio, slots, room)
        args += [*floats(q.eps), pointer(at.faults)]
        macros = [*kv_macros(store.k_pool, store.v_pool), ("STRATA_HEAD_DIM", dim)]
        if store.resident is not None:
            macros.append(("STRATA_RATIO", slot_ratio(store.resident)))
        units = heads + 2 * kv_heads + (index_heads + 1 if self.index is not None else 0)
        grid = -(-units // _INPUT_WARPS), at.bucket
        return launch(
            "attention_inputs.cu", "attention_inputs", grid, 32 * _INPUT_WARPS, args, macros=macros,
            shared=4 * _INPUT_WARPS * room, ahead=True,
        )  # fmt: skip

    def _index(self, at: Context) -> tuple[int, int, int, int, list[Arg]]:
        """Heads, their values, cells of a block, sequences, and the addresses of the indexer's part."""
        if self.index is None:
            return 0, 0, 1, self.store.page_table.shape[0], at.at(*[None] * 8)
        keys, q = self.index
        dim = keys.pooled.shape[-1]
        args = [*at.at(q.x), *at.raw(q.weight), *at.at(q.out, keys.x), *at.raw(keys.weight)]
        args += at.at(keys.cells, keys.raw, keys.pooled)
        return q.x.shape[-1] // dim, dim, PAGE_CELLS // keys.pooled.shape[1], keys.raw.shape[0], args


@sublayer
def attention_sublayer(p: Pattern) -> Lowering:
    """Six launches between two that read the streams: products, inputs, selection, attention, product."""
    source = read(p)
    x = source.x
    inputs, q_and_gate, matrices = _projections(p, x)
    index_k = p.product(x)
    keys = p.need(IndexKeys, lambda op: op.x is index_k.out)
    index_q_proj = p.product(x)
    index_q = p.need(HeadNormRope, lambda op: op.x is index_q_proj.out)
    scores = p.need(BlockScores, lambda op: op.q is index_q.out)
    select = p.need(SelectBlocks, lambda op: op.scores is scores.out)
    inputs = replace(inputs, index=(keys, index_q), q_out=_turned(p, inputs.q.out, inputs.store.k_pool))
    fetch = p.maybe(KvFetch)
    attention = p.need(SparseAttention, lambda op: op.q is inputs.q_out and op.selected is select.out)
    result = _turned(p, attention.out, inputs.store.v_pool)
    last = _gated_product(p, result, q_and_gate, cell_values(attention.k_pool))
    end = write(p, source, last.y.out)
    require(index_q.stride == keys.pooled.shape[-1] and inputs.q.table is keys.table)
    matrices += [index_k, index_q_proj]

    def launches(at: Context) -> list[Launch]:
        gated: list[Arg] = [*at.at(q_and_gate.out), *at.q8(last.x)]
        return [
            *source.launches(p, at),
            *products(at, x, p.planes(x, at), matrices),
            inputs.launch(at),
            _select(scores, select, at),
            *([] if fetch is None else lower(fetch, at)),
            *attend(attention, at, gated, result is not attention.out),
            product_write(at, at.q8(last.x), last.y, end.residual, end.inject, end.out),
        ]

    return launches


@sublayer
def dense_attention_sublayer(p: Pattern) -> Lowering:
    """The same without an indexer: products, inputs, attention, product."""
    source = read(p)
    x = source.x
    inputs, q_and_gate, matrices = _projections(p, x)
    inputs = replace(inputs, q_out=_turned(p, inputs.q.out, inputs.store.k_pool))
    attention = p.need(Attention, lambda op: op.q is inputs.q_out and op.k_pool is inputs.store.k_pool)
    result = _turned(p, attention.out, inputs.store.v_pool)
    last = _gated_product(p, result, q_and_gate, cell_values(attention.k_pool))
    end = write(p, source, last.y.out)

    def launches(at: Context) -> list[Launch]:
        turn = result is not attention.out
        return [
            *source.launches(p, at),
            *products(at, x, p.planes(x, at), matrices),
            inputs.launch(at),
            *attend_all(attention, at, last.x, turn=turn, gate=q_and_gate.out),
            product_write(at, at.q8(last.x), last.y, end.residual, end.inject, end.out),
        ]

    return launches


def _projections(p: Pattern, x: Buffer) -> tuple[_Inputs, Product, list[Product]]:
    """Queries with gates, keys and values of x, normed, turned and stored; the queries' product; all products."""
    q_and_gate = p.product(x)
    q = p.need(HeadNormRope, lambda op: op.x is q_and_gate.out)
    k_proj = p.product(x)
    k = p.need(HeadNormRope, lambda op: op.x is k_proj.out)
    v_proj = p.product(x)
    turned = {op.x: op.out for op in (p.maybe(Hadamard), p.maybe(Hadamard)) if op is not None}
    store = p.need(
        KvStore, lambda op: op.k is turned.get(k.out, k.out) and op.v is turned.get(v_proj.out, v_proj.out)
    )
    head_dim = cell_values(store.k_pool)
    require(q.stride == 2 * head_dim and k.stride == head_dim and head_dim % 32 == 0 and q.table is k.table)
    return _Inputs(q, q.out, k, v_proj.out, store, None), q_and_gate, [q_and_gate, k_proj, v_proj]


@dataclass(frozen=True)
class _Last:
    """The product that ends a sublayer, of q8 rows x."""

    x: Buffer
    y: Product


def _gated_product(p: Pattern, result: Buffer, q_and_gate: Product, head_dim: int) -> _Last:
    """Heads gated, quantised, and their product."""
    gate = p.need(SigmoidGate, lambda op: op.x is result and op.gate is q_and_gate.out)
    quantize = p.need(Quantize, lambda op: op.x is gate.out)
    last = p.need(LinearQ, lambda op: op.x is quantize.out)
    require(gate.stride == 2 * head_dim and gate.offset == head_dim)
    return _Last(quantize.out, Product(last.weight, last.out))


def _turned(p: Pattern, x: Buffer, pool: Buffer) -> Buffer:
    """x as the pool holds it: turned by the next op, where cells have 4 bits."""
    return p.need(Hadamard, lambda op: op.x is x).out if pool.dtype == "u8" else x


def _select(scores: BlockScores, select: SelectBlocks, at: Context) -> Launch:
    rows, stride = scores.out.shape
    dim, wide = scores.pooled.shape[-1], scores.q.shape[-1]
    args = [at.live(scores.q), *at.at(scores.positions, scores.sequences, scores.page_table, scores.q)]
    args += [*at.at(scores.pooled, select.out, scores.out), pointer(at.counters(rows))]
    args += [pointer(at.counters(rows * _SELECT_BINS)), *score_sizes(scores, stride), pointer(at.faults)]
    shared = 4 * wide + 8 * _SELECT_LISTED + -(-stride // 16) * 4
    require(dim % 32 == 0 and dim <= 128 and stride % 4 == 0 and shared + 4096 <= at.properties.shared)
    workers = max(1, min(2 * at.properties.multiprocessors, -(-stride // 128)))
    grid = workers, rows
    return launch("select.cu", "score_and_select", grid, _SELECT_THREADS, args, shared=shared, ahead=True)


@sublayer
def head_read(p: Pattern) -> Lowering:
    """The streams' mean without a sublayer, and a quantised product of it, or of some rows of its matrix."""
    source = match_streams(p)
    p.quantised_form(source.x)
    some = p.maybe(LinearSome)
    last = some or p.need(LinearQ)
    require(source.inject is None and last.x is p.q8.get(source.x))
    p.close(last.out)

    def launches(at: Context) -> list[Launch]:
        planes = p.planes(source.x, at)
        if some is not None:
            return [*source.launches(p, at), linear_some(some, at, planes)]
        return [*source.launches(p, at), *products(at, source.x, planes, [Product(last.weight, last.out)])]

    return launches
