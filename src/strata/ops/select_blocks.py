"""select_blocks: which blocks of cells a row attends to; whole blocks compete, the tail is always seen."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import lane_dot
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.index_keys import IndexPool
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect
from strata.ops.step import PAGE_CELLS


@dataclass(frozen=True, eq=False)
class BlockScores(Op):
    """Score of a complete block: sum over heads, ascending, of max(q_h . key, 0). Rows whose blocks all fit in the
    budget have none computed."""

    kind: ClassVar[str] = "block_scores"
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    q: Buffer  # [rows, heads * dim]
    pooled: Buffer
    out: Buffer  # f32 [rows, blocks a sequence can have]
    budget: int

    @property
    def ratio(self) -> int:
        """Cells of a block."""
        return PAGE_CELLS // self.pooled.shape[1]

    def run_float(self, at: Arrays) -> None:
        for row, q, keys in self._rows(at):
            at[self.out][row, : len(keys)] = np.maximum(q @ keys.T, 0).sum(axis=0)

    def run_contract(self, at: Arrays) -> None:
        for row, q, keys in self._rows(at):
            total = np.zeros(len(keys), np.float32)
            for head in q:
                total = total + np.maximum(lane_dot(keys, head), np.float32(0))
            at[self.out][row, : len(keys)] = total

    def _rows(self, at: Arrays) -> Iterator[tuple[int, Any, Any]]:
        dim = self.pooled.shape[-1]
        for row, q in enumerate(at.live(self.q)):
            blocks = (int(at[self.positions][row]) + 1) // self.ratio
            if blocks > self.budget:
                pages = at[self.page_table][at[self.sequences][row]]
                count = -(-blocks * self.ratio // PAGE_CELLS)
                yield row, q.reshape(-1, dim), at[self.pooled][pages[:count]].reshape(-1, dim)[:blocks]


@dataclass(frozen=True, eq=False)
class SelectBlocks(Op):
    """The `budget` best blocks in ascending order of place; equal scores go to the lower block. All, where they fit."""

    kind: ClassVar[str] = "select_blocks"
    positions: Buffer
    scores: Buffer
    out: Buffer  # i32 [rows, budget]
    ratio: int

    def run_float(self, at: Arrays) -> None:
        budget = self.out.shape[-1]
        for row, scores in enumerate(at.live(self.scores)):
            blocks = (int(at[self.positions][row]) + 1) // self.ratio
            kept = min(blocks, budget)
            best = np.argsort(-scores[:blocks], kind="stable")[:kept] if blocks > budget else np.arange(kept)
            at[self.out][row, :kept] = np.sort(best)


def select_blocks(b: Builder, q: Buffer, pool: IndexPool, budget: int) -> Buffer:
    """Block numbers i32 [rows, budget], of which min(complete blocks, budget) are used; q [rows, heads * dim]."""
    dim = pool.pooled.shape[-1]
    expect(q.shape[-1] % dim == 0, f"{q} is not whole heads of {dim}")
    s = b.steps
    blocks = s.page_table.shape[1] * PAGE_CELLS // pool.ratio
    scores = b.rows(max(blocks, budget), "scores", like=q)
    b.emit(BlockScores(s.positions, s.sequences, s.page_table, q, pool.pooled, scores, budget))
    out = b.rows(budget, "selected", like=q, dtype="i32")
    b.emit(SelectBlocks(s.positions, scores, out, pool.ratio))
    return out
