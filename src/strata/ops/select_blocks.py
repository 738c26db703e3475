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

_FEW_ROWS = 32  # up to here a row's blocks are shared between threads, and scores of all rows are kept


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
        self._run(at, lambda q, keys: np.maximum(q @ keys.T, 0).sum(axis=0))

    def run_contract(self, at: Arrays) -> None:
        self._run(at, _score_contract)

    def _run(self, at: Arrays, score: Any) -> None:
        for row, q, keys in self._rows(at):
            at[self.out][row, : len(keys)] = score(q, keys)

    def _rows(self, at: Arrays) -> Iterator[tuple[int, Any, Any]]:
        dim = self.pooled.shape[-1]
        for row, q in enumerate(at.live(self.q)):
            blocks = (int(at[self.positions][row]) + 1) // self.ratio
            if blocks > self.budget:
                pages = at[self.page_table][at[self.sequences][row]]
                count = -(-blocks * self.ratio // PAGE_CELLS)
                yield row, q.reshape(-1, dim), at[self.pooled][pages[:count]].reshape(-1, dim)[:blocks]


def _score_contract(q: Any, keys: Any) -> Any:
    total = np.zeros(len(keys), np.float32)
    for head in q:
        total = total + np.maximum(lane_dot(keys, head), np.float32(0))
    return total


@dataclass(frozen=True, eq=False)
class SelectBlocks(Op):
    """The `budget` best blocks in ascending order of place; equal scores go to the lower block. All, where they fit."""

    kind: ClassVar[str] = "select_blocks"
    positions: Buffer
    scores: Buffer
    out: Buffer  # i32 [rows, budget]
    ratio: int

    def run_float(self, at: Arrays) -> None:
        for row, scores in enumerate(at.live(self.scores)):
            blocks = (int(at[self.positions][row]) + 1) // self.ratio
            best = _best(scores[:blocks], self.out.shape[-1])
            at[self.out][row, : len(best)] = best


@dataclass(frozen=True, eq=False)
class RankBlocks(BlockScores):
    """Scores and selection at once, for many rows: no row's scores outlive it. `out` is i32 [rows, budget]."""

    kind: ClassVar[str] = "rank_blocks"
    max_blocks: int  # of a sequence

    def _run(self, at: Arrays, score: Any) -> None:
        for row in range(at.count(self.q)):
            best = np.arange((int(at[self.positions][row]) + 1) // self.ratio)
            at[self.out][row, : min(len(best), self.budget)] = best[: self.budget]
        for row, q, keys in self._rows(at):
            at[self.out][row] = _best(score(q, keys), self.budget)


def _best(scores: Any, budget: int) -> Any:
    if len(scores) <= budget:
        return np.arange(len(scores))
    return np.sort(np.argsort(-scores, kind="stable")[:budget])


def select_blocks(b: Builder, q: Buffer, pool: IndexPool, budget: int) -> Buffer:
    """Block numbers i32 [rows, budget], of which min(complete blocks, budget) are used; q [rows, heads * dim]."""
    dim = pool.pooled.shape[-1]
    expect(q.shape[-1] % dim == 0, f"{q} is not whole heads of {dim}")
    s = b.steps
    blocks = s.page_table.shape[1] * PAGE_CELLS // pool.ratio
    out = b.rows(budget, "selected", like=q, dtype="i32")
    step = (s.positions, s.sequences, s.page_table, q, pool.pooled)
    if q.shape[0] > _FEW_ROWS:
        b.emit(RankBlocks(*step, out, budget, max(blocks, budget)))
        return out
    scores = b.rows(max(blocks, budget), "scores", like=q)
    b.emit(BlockScores(*step, scores, budget))
    b.emit(SelectBlocks(s.positions, scores, out, pool.ratio))
    return out
