"""Fused launches of dense architectures: norms with what surrounds them, products of the same rows."""

from itertools import takewhile
from typing import TypeVar

from strata.backends.cuda.fuse import Match, Window, fusion
from strata.backends.cuda.lower_attention import attend, rope_store
from strata.backends.cuda.lower_dense import norm_row, quantize_blocks, whole_row
from strata.backends.cuda.lower_linear import MOST_MATRICES, floating, quantised
from strata.ops.attention import Attention
from strata.ops.elementwise import Add, SiluMul
from strata.ops.kv_store import KvStore
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


@fusion
def _rotated_cells(w: Window) -> Match | None:
    """Queries and keys [normed by heads and] rotated, then stored."""
    rotations, norms, at = [], [], 0
    for _ in range(2):
        norm = w.at(at, RmsNorm)
        at += norm is not None
        rotation = w.at(at, Rope)
        at += 1
        if rotation is None or (
            norm is not None and not (norm.out is rotation.x and w.unread_after(at, norm.out))
        ):
            return None
        if norm is not None and norm.weight.shape[-1] != rotation.head_dim:
            return None
        rotations.append(rotation)
        norms.append(norm)
    (q, k), store = rotations, w.at(at, KvStore)
    if store is None or store.k is not k.out or store.positions is not q.positions:
        return None
    alike = [(r.positions, r.table, r.head_dim, r.style) for r in rotations]
    if alike[0] != alike[1] or store.k_pool.shape[3] != q.head_dim:
        return None
    keys = not w.unread_after(at + 1, k.out)
    return Match(at + 1, lambda to: rope_store((q, k), (norms[0], norms[1]), store, to, keys))


@fusion
def _attention(w: Window) -> Match | None:
    """Attention whose result becomes int8 blocks."""
    first, second = w.at(0, Attention), w.at(1, Quantize)
    if first is None or second is None or second.x is not first.out or first.k_pool.shape[3] % 32:
        return None
    out = not w.unread_after(2, first.out)
    return Match(2, lambda to: attend(first, to, second.out, out))


@fusion
def _quantised_products(w: Window) -> Match | None:
    """Products of the same q8 rows with matrices of one format."""
    found = _alike(w.run(0, LinearQ, MOST_MATRICES))
    return Match(len(found), lambda to: quantised(found, to)) if len(found) > 1 else None


@fusion
def _float_products(w: Window) -> Match | None:
    """Products of the same float rows with matrices of one type."""
    found = _alike(w.run(0, LinearF, MOST_MATRICES))
    return Match(len(found), lambda to: floating(found, to)) if len(found) > 1 else None


P = TypeVar("P", LinearQ, LinearF)


def _alike(ops: list[P]) -> list[P]:
    """The first ones that share the first one's rows and format."""
    same = takewhile(lambda op: op.x is ops[0].x and op.weight.format is ops[0].weight.format, ops)
    return list(same)
