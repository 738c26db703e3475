"""sparse_attention: attention over selected blocks in ascending order, and the incomplete block at the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import ATTENTION_SPLIT
from strata.ops.attention import combine, split
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.kv_fetch import KvFetch, ResidentKV
from strata.ops.kv_store import LayerKV, gather_cells, rotated
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect


@dataclass(frozen=True, eq=False)
class SparseAttention(Op):
    """Splits are by index in the ascending list of a row's cells: dense attention's bits where all are selected."""

    kind: ClassVar[str] = "sparse_attention"
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    q: Buffer  # [rows, heads * head_dim]
    selected: Buffer  # i32 [rows, budget]
    k_pool: Buffer
    v_pool: Buffer
    k_scales: Buffer | None
    v_scales: Buffer | None
    out: Buffer  # [rows, heads * head_dim]
    heads: int
    ratio: int
    scale: float
    resident: ResidentKV | None = None

    def run_float(self, at: Arrays) -> None:
        for row, q, k, v in self._rows(at):
            scores = np.einsum("ghd,gcd->ghc", q, k) * np.float32(self.scale)
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            at[self.out][row] = np.einsum("ghc,gcd->ghd", p, v).reshape(-1)

    def run_contract(self, at: Arrays) -> None:
        for row, q, k, v in self._rows(at):
            parts = [slice(i, i + ATTENTION_SPLIT) for i in range(0, k.shape[1], ATTENTION_SPLIT)]
            scale, seen = np.float32(self.scale), np.ones((1, k.shape[1]), bool)
            splits = [split(q[None], k[:, c], v[:, c], seen[:, c], scale) for c in parts]
            at[self.out][row] = combine(splits).reshape(-1)

    def _rows(self, at: Arrays) -> Iterator[tuple[int, Any, Any, Any]]:
        """(row, q [kv_heads, group, dim], k and v [kv_heads, cells, dim])."""
        kv_heads = self.k_pool.shape[1]
        for row, q in enumerate(at.live(self.q)):
            position = int(at[self.positions][row])
            pages = at[self.page_table][at[self.sequences][row]]
            cells = self._cells(at[self.selected][row], position)
            k, v = (
                gather_cells(at, pool, scales, pages, position + 1)[:, cells]
                for pool, scales in ((self.k_pool, self.k_scales), (self.v_pool, self.v_scales))
            )
            yield row, q.reshape(kv_heads, self.heads // kv_heads, -1), k, v

    def _cells(self, selected: Any, position: int) -> Any:
        blocks = (position + 1) // self.ratio
        kept = selected[: min(blocks, len(selected))]
        whole = (kept[:, None] * self.ratio + np.arange(self.ratio)).reshape(-1)
        return np.concatenate([whole, np.arange(blocks * self.ratio, position + 1)])


def sparse_attention(
    b: Builder, q: Buffer, selected: Buffer, kv: LayerKV, heads: int, ratio: int, scale: float
) -> Buffer:
    """Attention output [rows, heads * head_dim] over the cells of `selected` blocks of `ratio` and the tail."""
    expect(heads % kv.kv_heads == 0, f"{heads} query heads over {kv.kv_heads} key heads is not a whole ratio")
    expect(q.shape[-1] == heads * kv.head_dim, f"{q} is not {heads} heads of {kv.head_dim}")
    s, q = b.steps, rotated(b, q, kv.k)
    if kv.resident is not None:
        _fetch(b, selected, kv, kv.resident, ratio)
    out = b.rows(q.shape[-1], "attention", like=q)
    b.emit(
        SparseAttention(
            s.positions, s.sequences, s.page_table, q, selected, kv.k, kv.v, kv.k_scales, kv.v_scales, out, heads,
            ratio, scale, kv.resident,
        )
    )  # fmt: skip
    return rotated(b, out, kv.v)


def _fetch(b: Builder, selected: Buffer, kv: LayerKV, resident: ResidentKV, ratio: int) -> None:
    group = resident.k.shape[2]
    expect(group == ratio, f"groups of {group} cells are resident, blocks of {ratio} are selected")
    s, r = b.steps, resident
    pools = (kv.k, kv.v, kv.k_scales, kv.v_scales)
    b.emit(
        KvFetch(
            s.positions, s.sequences, s.page_table, selected, *pools, r.k, r.v, r.k_scales, r.v_scales, r.table,
            r.clock, r.counts, ratio, r.link_ns_per_byte, r.staged,
        )
    )  # fmt: skip
