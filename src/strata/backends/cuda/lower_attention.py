"""Lowering rules of keys and values: storing cells, dense attention."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.backends.cuda.cells import Cells, pool_cells, stage_cells
from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, lower, pointer, tensor_cores
from strata.backends.cuda.lower_dense import THREADS, rows_of, warps
from strata.ops.arithmetic import ATTENTION_SPLIT
from strata.ops.attention import Attention
from strata.ops.buffers import Buffer
from strata.ops.hadamard import Hadamard
from strata.ops.kv_fetch import ResidentKV
from strata.ops.kv_store import KV_GROUP, KvStore, cell_values
from strata.ops.quantize import Quantize
from strata.ops.rms_norm import RmsNorm
from strata.ops.rope import Rope
from strata.ops.sparse_attention import SparseAttention
from strata.ops.step import CHUNK_BLOCK, PAGE_CELLS

KV_TYPES = {"f32": 0, "f16": 1, "i8": 2, "u8": 3}
_HEADS = 4  # query heads that a thread block may take
_RESULT_BYTES = 128 << 20  # of splits; rows beyond it wait for the next launch
_WORKERS = 2  # thread blocks a multiprocessor


def pool_sizes(pool: Buffer) -> tuple[int, int, int]:
    """Pages, key heads, values of a head's cell."""
    return pool.shape[0], pool.shape[1], cell_values(pool)


def kv_macros(k_pool: Buffer, v_pool: Buffer) -> list[tuple[str, str | int]]:
    """STRATA_KV, and STRATA_V where values are held otherwise than keys."""
    k, v = KV_TYPES[k_pool.dtype], KV_TYPES[v_pool.dtype]
    return [("STRATA_KV", k), *([] if k == v else [("STRATA_V", v)])]


def slot_args(r: ResidentKV | None, at: Context) -> list[Arg]:
    """KvSlots of kv.cuh, without the ratio."""
    return at.at(*([None] * 5 if r is None else [r.k, r.v, r.k_scales, r.v_scales, r.table]))


def slot_ratio(r: ResidentKV | None) -> int:
    """Cells of a resident group; 0: there are none."""
    return 0 if r is None else r.k.shape[2]


@lower.register
def _(op: KvStore, at: Context) -> list[Launch]:
    places = (pool_cells(op, at), stage_cells(op, at))
    return [_store(op, at, cells) for cells in places if cells is not None]


def _store(op: KvStore, at: Context, to: Cells) -> Launch:
    _, kv_heads, head_dim = pool_sizes(op.k_pool)
    args = [at.live(op.k), *at.at(op.positions), to.sequences, to.page_table, *at.at(op.k, op.v), *to.pools]
    args += [*slot_args(to.resident, at), pointer(at.faults)]
    types = KV_TYPES[op.k_pool.dtype], KV_TYPES[op.v_pool.dtype]
    sizes = kv_heads, head_dim, op.page_table.shape[1], *types, to.num_pages, max(slot_ratio(to.resident), 1)
    groups = -(-head_dim // min(KV_GROUP, head_dim))
    grid = warps(rows_of(op.k, at) * kv_heads * groups * 2)
    return launch("kv_store.cu", "kv_store", grid, 128, [*args, *ints(*sizes)])


@lower.register
def _(op: Hadamard, at: Context) -> list[Launch]:
    width = op.x.shape[-1]
    args = [at.live(op.out), *at.at(op.x, op.out), *ints(width, op.group), *floats(op.group**-0.5)]
    return [launch("heads.cu", "hadamard", warps(rows_of(op.out, at) * -(-width // KV_GROUP)), 128, args)]


@dataclass(frozen=True)
class Rotated:
    """What comes before attention: queries and keys [normed by heads and] rotated, and the cell that is stored."""

    rotations: tuple[Rope, Rope]
    norms: tuple[RmsNorm | None, RmsNorm | None]
    store: KvStore

    @property
    def sources(self) -> list[Buffer]:
        """Queries and keys as they come."""
        return [r.x if n is None else n.x for r, n in zip(self.rotations, self.norms, strict=True)]

    def args(self, at: Context) -> list[Arg]:
        """Of attention.cu, behind its own."""
        q, norms = self.rotations[0], self.norms
        found = [*at.at(q.table, self.sources[1], self.store.v)]
        found += at.raw(*(None if n is None else n.weight for n in norms))
        found += ints(q.rotary_dim, int(q.style), q.table.shape[0])
        return found + floats(*(0.0 if n is None else n.eps for n in norms))


def rope_store(rotated: Rotated, v: Buffer, q_out: Buffer, at: Context, keys: bool) -> list[Launch]:
    """Queries and keys normed and rotated, keys and values stored; `v`: what becomes values; `q_out`: where queries go,
    turned where the pool's keys are; `keys`: are rotated keys read by others."""
    (q, k), norms, op = rotated.rotations, rotated.norms, rotated.store
    num_pages, kv_heads, head_dim = pool_sizes(op.k_pool)
    heads = q.x.shape[-1] // head_dim
    args = [at.live(q.out), *at.at(q.positions, op.sequences, op.page_table, q.table, *rotated.sources, v)]
    args += [
        *at.raw(*(None if n is None else n.weight for n in norms)),
        *at.at(q_out, k.out if keys else None),
    ]
    args += [*at.at(op.k_pool, op.v_pool, op.k_scales, op.v_scales), pointer(at.faults)]
    args += ints(heads, kv_heads, head_dim, q.rotary_dim, int(q.style), q.table.shape[0])
    types = KV_TYPES[op.k_pool.dtype], KV_TYPES[op.v_pool.dtype]
    args += ints(op.page_table.shape[1], *types, num_pages, rows_of(op.k, at))
    args += floats(*(0.0 if n is None else n.eps for n in norms))
    grid = warps(rows_of(op.k, at) * (heads + 2 * kv_heads))
    return [launch("rope_store.cu", "rope_store", grid, 128, args, shared=4 * 4 * head_dim)]


@lower.register
def _(op: Attention, at: Context) -> list[Launch]:
    return attend(op, at, out=op.out)


def of_prompt(op: Attention | SparseAttention, at: Context) -> bool:
    """Whether tensor cores compute it: a prompt's blocks of 64 rows, cells of halves or int8."""
    head_dim, rows = op.k_pool.shape[-1], op.q.shape[0]
    known = op.k_pool.dtype == op.v_pool.dtype in ("f16", "i8")
    return tensor_cores(at) and rows % CHUNK_BLOCK == 0 and known and head_dim in (64, 128, 256)


def attend(
    op: Attention,
    at: Context,
    planes: Buffer | None = None,
    out: Buffer | None = None,
    turn: bool = False,
    rotated: Rotated | None = None,
    gate: Buffer | None = None,
) -> list[Launch]:
    """Attention to the floats `out` and the q8 rows `planes`, where they are given; `turn`: heads are turned first;
    `rotated`: of one row, what its launch does before; `gate`: queries with gates, by which heads are gated before
    they become `planes`, and nothing goes to `out`."""
    if of_prompt(op, at):
        return [_attend_chunk(op, at), *(lower(Quantize(op.out, planes), at) if planes is not None else ())]
    num_pages, kv_heads, head_dim = pool_sizes(op.k_pool)
    pages, rows, group = op.page_table.shape[1], rows_of(op.q, at), op.heads // kv_heads
    splits = _splits(pages * PAGE_CELLS, op.window)
    heads = min(most_heads(head_dim), group)
    per_row = op.heads * splits * (head_dim + 2) * 4
    at_once = max(1, min(rows, _RESULT_BYTES // per_row))
    parts = kv_heads * -(-group // heads)
    workers = max(1, min(splits, -(-_WORKERS * at.properties.multiprocessors // (at_once * parts))))
    q = op.q if rotated is None else rotated.sources[0]
    head = [at.live(op.q), *at.at(op.positions, op.sequences, op.page_table, q, op.k_pool, op.v_pool)]
    head += at.at(op.k_scales, op.v_scales, out)
    head += at.q8(planes) if planes is not None else [pointer(0)] * 3
    head += [pointer(at.scratch(at_once * per_row)), pointer(at.counters(rows * parts)), pointer(at.faults)]
    head += ints(op.heads, kv_heads, pages, op.window, num_pages)
    macros = [
        *kv_macros(op.k_pool, op.v_pool),
        ("STRATA_HEADS", heads),
        ("STRATA_DIM", head_dim),
        *turned(turn),
        *([] if gate is None else [("STRATA_GATED", 1)]),
        *([] if rotated is None else [("STRATA_ROPE", 1)]),
    ]
    more = [] if gate is None else at.at(gate)
    more += [] if rotated is None else rotated.args(at)
    return [
        launch(
            "attention.cu",
            "attention",
            (workers, parts, min(at_once, rows - row)),
            THREADS,
            [*head, *ints(row, splits), *floats(op.scale), *more],
            macros=macros,
            shared=room(head_dim, heads),
        )
        for row in range(0, rows, at_once)
    ]


def turned(turn: bool) -> Sequence[tuple[str, str | int]]:
    """The macro of kernels that turn heads before they write them."""
    return [("STRATA_TURN", 1)] if turn else []


def _chunk_room(head_dim: int, heads: int, staged: bool) -> int:
    """Bytes of Room of attention_prompt.cu."""
    queries = 2 * CHUNK_BLOCK * heads * (head_dim + 8) if staged else 16
    return 2 * (queries + 2 * CHUNK_BLOCK * (head_dim + 8)) + 2 * 4 * head_dim


def _attend_chunk(op: Attention, at: Context) -> Launch:
    """A thread block 64 rows of one or two heads."""
    num_pages, kv_heads, _, dim = op.k_pool.shape
    heads = 2 if op.heads // kv_heads % 2 == 0 else 1
    staged = _chunk_room(dim, heads, True) <= at.properties.shared
    args = [at.live(op.q), *at.at(op.positions, op.sequences, op.page_table, op.q, op.k_pool, op.v_pool)]
    args += at.at(op.k_scales, op.v_scales, op.out)
    args += ints(op.heads, kv_heads, op.page_table.shape[1], op.window, num_pages)
    args += [*floats(op.scale), pointer(at.faults)]
    macros = [
        ("STRATA_KV", KV_TYPES[op.k_pool.dtype]),
        ("STRATA_DIM", dim),
        ("STRATA_STAGED", int(staged)),
        ("STRATA_HEADS", heads),
    ]
    grid, shared = (op.heads // heads, op.q.shape[0] // CHUNK_BLOCK), _chunk_room(dim, heads, staged)
    return launch(
        "attention_prompt.cu", "attention_prompt", grid, 128 * heads, args, macros=macros, shared=shared
    )


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
