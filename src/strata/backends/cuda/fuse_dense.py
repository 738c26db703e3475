"""Fused launches of dense architectures: norms with what surrounds them, products of the same rows."""

from itertools import takewhile
from typing import TypeVar

from strata.backends.cuda.fuse import Lowering, Match, Window, fusion
from strata.backends.cuda.lower_attention import Rotated, attend, rope_store
from strata.backends.cuda.lower_dense import norm_row, quantize_blocks, whole_row
from strata.backends.cuda.lower_linear import MOST_MATRICES, floating, quantised
from strata.backends.cuda.pattern import Pattern, require, sublayer
from strata.ops.attention import Attention
from strata.ops.elementwise import Add, SiluMul
from strata.ops.hadamard import Hadamard
from strata.ops.kv_store import KvStore, cell_values
from strata.ops.linear import LinearF, LinearQ
from strata.ops.quantize import Quantize
from strata.ops.rms_norm import RmsNorm
from strata.ops.rope import Rope

_LONGEST_ROW = 8192  # values of a row that every device holds in shared memory


@fusion
def _norm(w: Window) -> Match | None:
    """[x + y,] norm [, int8 blocks]."""
    before = w.at(0, Add)
    at = 0 if before is None else 1
    norm = w.at(at, RmsNorm)
    if norm is None or not whole_row(norm) or norm.x.shape[-1] > _LONGEST_ROW:
        return None
    if before is not None and norm.x is not before.out:
        return None
    after = w.at(at + 1, Quantize)
    if after is not None and (after.x is not norm.out or norm.x.shape[-1] % 32):
        after = None
    count = at + 1 + (after is not None)
    out = after is None or not w.unread_after(count, norm.out)
    return Match(count, lambda to: norm_row(norm, to, before=before, after=after, out=out))


@fusion
def _activation(w: Window) -> Match | None:
    """silu(gate) * up as int8 blocks."""
    first, second = w.at(0, SiluMul), w.at(1, Quantize)
    if first is None or second is None or second.x is not first.out or not w.unread_after(2, first.out):
        return None
    return Match(2, lambda to: quantize_blocks("silu_quantize", to.at(first.gate, first.up), second.out, to))


@sublayer
def _rotated_cells(p: Pattern) -> Lowering:
    """Queries and keys [normed by heads and] rotated, [keys and values turned,] stored; [queries turned]."""
    (q, k), norms = _rotations(p)
    turns = {op.x: op.out for op in (p.maybe(Hadamard), p.maybe(Hadamard)) if op is not None}
    store = p.need(KvStore, lambda op: op.k is turns.get(k.out, k.out) and op.positions is q.positions)
    require(cell_values(store.k_pool) == q.head_dim)
    v = next((x for x, out in turns.items() if out is store.v), store.v)
    q_out = p.need(Hadamard, lambda op: op.x is q.out).out if store.k_pool.dtype == "u8" else q.out
    p.close(q_out, k.out)
    keys = not p.unread(k.out)
    return lambda to: rope_store(Rotated((q, k), norms, store), v, q_out, to, keys)


@sublayer
def _rotated_attention(p: Pattern) -> Lowering:
    """Of one row: queries and keys [normed by heads and] rotated, stored, attention[, its result as int8 blocks]."""
    require(p.bucket == 1)
    (q, k), norms = _rotations(p)
    store = p.need(
        KvStore, lambda op: op.k is k.out and op.positions is q.positions and op.k_pool.dtype != "u8"
    )
    require(store.v_pool.dtype != "u8" and cell_values(store.k_pool) == q.head_dim and q.head_dim % 32 == 0)
    own = store.k_pool, store.v_pool, store.k_scales, store.v_scales, q.out, q.positions
    attention = p.need(
        Attention, lambda op: (op.k_pool, op.v_pool, op.k_scales, op.v_scales, op.q, op.positions) == own
    )
    after = p.maybe(Quantize)
    if after is not None and after.x is not attention.out:
        p.back(len(p.ops) - 1)
        after = None
    planes = None if after is None else after.out
    out = None if after is not None and p.unread(attention.out) else attention.out
    p.close(*(b for b in (planes, out) if b is not None))
    rotated = Rotated((q, k), norms, store)
    return lambda to: attend(attention, to, planes, out, rotated=rotated)


def _rotations(p: Pattern) -> tuple[tuple[Rope, Rope], tuple[RmsNorm | None, RmsNorm | None]]:
    """The rotations of queries and keys, which are alike, and the norms before them."""
    (q_norm, q), (k_norm, k) = _rotation(p), _rotation(p)
    alike = [(r.positions, r.table, r.head_dim, r.style, r.rotary_dim) for r in (q, k)]
    require(alike[0] == alike[1])
    return (q, k), (q_norm, k_norm)


def _rotation(p: Pattern) -> tuple[RmsNorm | None, Rope]:
    """A rotation, and the norm by heads before it."""
    norm = p.maybe(RmsNorm)
    rope = p.need(Rope, lambda op: norm is None or op.x is norm.out)
    require(norm is None or norm.weight.shape[-1] == rope.head_dim)
    return norm, rope


@fusion
def _attention(w: Window) -> Match | None:
    """Attention whose result [turned] becomes int8 blocks."""
    first, turn = w.at(0, Attention), w.at(1, Hadamard)
    if first is None or cell_values(first.k_pool) % 32 or (turn is not None and turn.x is not first.out):
        return None
    count, result = (2, first.out) if turn is None else (3, turn.out)
    last = w.at(count - 1, Quantize)
    if last is None or last.x is not result or not (turn is None or w.unread_after(count, first.out)):
        return None
    out = None if w.unread_after(count, result) else result
    return Match(count, lambda to: attend(first, to, last.out, out, turn is not None))


@fusion
def _quantised_products(w: Window) -> Match | None:
    """Products of the same q8 rows with matrices of one format."""
    found = alike(w.run(0, LinearQ, MOST_MATRICES))
    return Match(len(found), lambda to: quantised(found, to)) if len(found) > 1 else None


@fusion
def _float_products(w: Window) -> Match | None:
    """Products of the same float rows with matrices of one type."""
    found = alike(w.run(0, LinearF, MOST_MATRICES))
    return Match(len(found), lambda to: floating(found, to)) if len(found) > 1 else None


P = TypeVar("P", LinearQ, LinearF)


def alike(ops: list[P]) -> list[P]:
    """The first ones that share the first one's rows and format."""
    same = takewhile(lambda op: op.x is ops[0].x and op.weight.format is ops[0].weight.format, ops)
    return list(same)
