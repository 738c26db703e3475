"""attention: causal grouped-query attention over the paged pool, in splits of cells at absolute positions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.ops.arithmetic import ATTENTION_SPLIT, LANES, exp32, fma, lane_dot, lane_sum, tree_sum
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.kv_store import LayerKV, cell_values, gather_cells, rotated
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect

MAX_HEAD_DIM = 512  # kMaxHeadDim of native/cpu/kernels/attention.cpp
_ROWS = 8  # rows computed at a time, to bound the reference's memory

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Attention(Op):
    """Row r attends to cells 0..positions[r] of its sequence (the last `window` of them, when not 0)."""

    kind: ClassVar[str] = "attention"
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    q: Buffer  # [rows, heads * head_dim]
    k_pool: Buffer
    v_pool: Buffer
    k_scales: Buffer | None  # of quantised pools
    v_scales: Buffer | None
    out: Buffer  # [rows, heads * head_dim]
    heads: int
    scale: float
    window: int = 0

    def run_float(self, at: Arrays) -> None:
        for rows, q, k, v, visible in self._groups(at):
            scores = np.einsum("rghd,gcd->rghc", q, k) * np.float32(self.scale)
            scores = np.where(visible[:, None, None], scores, -np.inf)
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            at.live(self.out)[rows] = np.einsum("rghc,gcd->rghd", p, v).reshape(len(rows), -1)

    def run_contract(self, at: Arrays) -> None:
        for rows, q, k, v, visible in self._groups(at):
            starts = range(0, k.shape[1], ATTENTION_SPLIT)
            cells = [slice(i, i + ATTENTION_SPLIT) for i in starts]
            splits = [split(q, k[:, c], v[:, c], visible[:, c], np.float32(self.scale)) for c in cells]
            at.live(self.out)[rows] = combine(splits).reshape(len(rows), -1)

    def _groups(
        self, at: Arrays
    ) -> Iterator[tuple[NDArray[np.intp], Array, Array, Array, NDArray[np.bool_]]]:
        """(rows, q [rows, kv_heads, group, dim], k and v [kv_heads, cells, dim], visible [rows, cells])."""
        n = at.count(self.q)
        positions, sequences = at[self.positions][:n], at[self.sequences][:n]
        kv_heads, dim = self.k_pool.shape[1], cell_values(self.k_pool)
        q = at.live(self.q).reshape(n, kv_heads, self.heads // kv_heads, dim)
        for sequence in np.unique(sequences):
            members = np.flatnonzero(sequences == sequence)
            for i in range(0, len(members), _ROWS):
                rows = members[i : i + _ROWS]
                cells = int(positions[rows].max()) + 1
                pages = at[self.page_table][sequence]
                pools = ((self.k_pool, self.k_scales), (self.v_pool, self.v_scales))
                k, v = (gather_cells(at, pool, scales, pages, cells) for pool, scales in pools)
                cell, position = np.arange(cells), positions[rows][:, None]
                visible = cell <= position
                if self.window:
                    visible &= cell > position - self.window
                yield rows, q[rows], k, v, visible


class Split(NamedTuple):
    """One split of rows x heads: max of the visible scores (-inf where none), sum of p, weighted values."""

    m: Array
    total: Array
    out: Array  # one more axis: head_dim


def split(q: Array, k: Array, v: Array, visible: NDArray[np.bool_], scale: np.float32) -> Split:
    """q [rows, kv_heads, group, dim], k and v [kv_heads, cells, dim], visible [rows, cells].

    Cells that are not visible leave every lane as it is.
    """
    scores = lane_dot(q[:, :, :, None, :], k[:, None, :, :]) * scale
    seen = visible[:, None, None]
    m = np.where(seen, scores, np.float32(-np.inf)).max(axis=-1)
    anchor = np.where(np.isfinite(m), m, np.float32(0))
    p = np.where(seen, exp32(np.where(seen, scores - anchor[..., None], np.float32(0))), np.float32(0))
    lanes = np.zeros((*p.shape[:-1], LANES, v.shape[-1]), np.float32)
    for i in range(0, p.shape[-1], LANES):
        weight, value = p[..., i : i + LANES], v[:, None, i : i + LANES]
        count = weight.shape[-1]
        lanes[..., :count, :] = fma(weight[..., None], value, lanes[..., :count, :])
    return Split(m, lane_sum(p), tree_sum(np.moveaxis(lanes, -2, -1)))


def combine(splits: Sequence[Split]) -> Array:
    """Splits in ascending order under the maximum of all: out[d] = sum of o_s[d] a_s over sum of l_s a_s."""
    largest = np.max([s.m for s in splits], axis=0)
    total, out = np.zeros_like(largest), np.zeros_like(splits[0].out)
    for s in splits:
        present = np.isfinite(s.m)
        factor = exp32(np.where(present, s.m - largest, np.float32(0)))
        total = np.where(present, fma(s.total, factor, total), total)
        out = np.where(present[..., None], fma(s.out, factor[..., None], out), out)
    return np.asarray(out / total[..., None])


def attention(b: Builder, q: Buffer, kv: LayerKV, heads: int, scale: float, window: int = 0) -> Buffer:
    """Attention output [rows, heads * head_dim] of q [rows, heads * head_dim] over a layer's cells."""
    expect(heads % kv.kv_heads == 0, f"{heads} query heads over {kv.kv_heads} key heads is not a whole ratio")
    expect(
        kv.head_dim <= MAX_HEAD_DIM, f"heads have {kv.head_dim} values; at most {MAX_HEAD_DIM} can be served"
    )
    expect(q.shape[-1] == heads * kv.head_dim, f"{q} is not {heads} heads of {kv.head_dim}")
    s, q = b.steps, rotated(b, q, kv.k)
    out = b.rows(q.shape[-1], "attention", like=q)
    pools = (kv.k, kv.v, kv.k_scales, kv.v_scales)
    b.emit(Attention(s.positions, s.sequences, s.page_table, q, *pools, out, heads, scale, window))
    return rotated(b, out, kv.v)
