"""index_keys: the keys that sparse attention ranks blocks by: one raw key a cell, one pooled key a block."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import Float32
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.head_norm import Rotary, norm_contract, norm_float, rotate
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_shape, expect_width
from strata.ops.step import PAGE_CELLS


@dataclass(frozen=True, eq=False)
class IndexPool:
    """One layer's index keys by page: raw f32 [num_pages, PAGE_CELLS, dim], pooled f32 [num_pages, blocks, dim]; and
    of all layers, the cells' rotary positions i32 [num_pages, PAGE_CELLS, 3]."""

    raw: Buffer
    pooled: Buffer
    cells: Buffer

    @property
    def ratio(self) -> int:
        """Cells of a block."""
        return PAGE_CELLS // self.pooled.shape[1]


def cell_of(at: Arrays, page_table: Buffer, sequences: Any, positions: Any) -> tuple[Any, Any]:
    """Page ids and places within the page of cells."""
    return at[page_table][sequences, positions // PAGE_CELLS], positions % PAGE_CELLS


@dataclass(frozen=True, eq=False)
class CellPositions(Op):
    """Keeps the rows' rotary positions in their cells."""

    kind: ClassVar[str] = "cell_positions"
    writes: ClassVar[tuple[str, ...]] = ("cells",)
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    rope_positions: Buffer  # i32 [rows, 3]
    cells: Buffer

    def run_float(self, at: Arrays) -> None:
        page, cell = cell_of(at, self.page_table, at.live(self.sequences), at.live(self.positions))
        at[self.cells][page, cell] = at.live(self.rope_positions)


@dataclass(frozen=True, eq=False)
class IndexKeys(Op):
    """Stores raw keys; a row that completes a block also its pooled key: mean of the block's raw keys, RMS norm, rope
    at the block's first cell."""

    kind: ClassVar[str] = "index_keys"
    writes: ClassVar[tuple[str, ...]] = ("raw", "pooled")
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    x: Buffer  # [rows, dim]
    weight: Weight  # F32 [dim]
    table: Buffer
    axes: Buffer
    cells: Buffer
    raw: Buffer
    pooled: Buffer
    eps: float

    def run_float(self, at: Arrays) -> None:
        self._run(at, exact=False)

    def run_contract(self, at: Arrays) -> None:
        self._run(at, exact=True)

    def _run(self, at: Arrays, exact: bool) -> None:
        ratio = PAGE_CELLS // self.pooled.shape[1]
        positions, sequences = at.live(self.positions), at.live(self.sequences)
        page, cell = cell_of(at, self.page_table, sequences, positions)
        at[self.raw][page, cell] = at.live(self.x)
        done = np.flatnonzero(positions % ratio == ratio - 1)
        page, first = page[done], cell[done] - (ratio - 1)
        total: Float32 = at[self.raw][page, first]
        for i in range(1, ratio):
            total = total + at[self.raw][page, first + i]
        mean = total / np.float32(ratio)
        normed = (norm_contract if exact else norm_float)(mean, self.weight.decode(), self.eps)
        cos, sin = Rotary(self.table, self.axes).angles(at, at[self.cells][page, first])
        at[self.pooled][page, first // ratio] = rotate(normed, cos, sin, exact)


def cell_positions(b: Builder, cells: Buffer) -> None:
    """Comes once, before the layers' `index_keys`."""
    s = b.steps
    b.emit(CellPositions(s.positions, s.sequences, s.page_table, s.rope_positions, cells))


def index_keys(b: Builder, x: Buffer, weight: Weight, pool: IndexPool, rotary: Rotary, eps: float) -> None:
    """Stores the keys x [rows, dim] of the step's rows."""
    dim = pool.raw.shape[-1]
    expect_width(x, dim)
    expect_shape(weight, dim)
    expect(rotary.dim <= dim, f"rope rotates {rotary.dim} values of index keys that have {dim}")
    s = b.steps
    b.emit(
        IndexKeys(
            s.positions, s.sequences, s.page_table, x, weight, rotary.table, rotary.axes, pool.cells, pool.raw,
            pool.pooled, eps,
        )
    )  # fmt: skip
