"""index_keys: the keys that sparse attention ranks blocks by."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import Float32
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.groups import Group, groups, keep, window
from strata.ops.head_norm import Rotary, norm_contract, norm_float, rotate
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_shape, expect_width
from strata.ops.step import PAGE_CELLS


@dataclass(frozen=True, eq=False)
class IndexPool:
    """One layer's index keys: of blocks by page, `pooled` f32 [num_pages, blocks, dim]; of the last tokens in a ring by
    position, `raw` f32 [slots, RING_ROWS, dim], since a block may begin in an earlier step. `cells` i32 [slots,
    RING_ROWS, 3] holds those tokens' rotary positions, for all layers."""

    raw: Buffer
    pooled: Buffer
    cells: Buffer

    @property
    def ratio(self) -> int:
        """Cells of a block."""
        return PAGE_CELLS // self.pooled.shape[1]


@dataclass(frozen=True, eq=False)
class CellPositions(Op):
    """Keeps the rows' rotary positions."""

    kind: ClassVar[str] = "cell_positions"
    writes: ClassVar[tuple[str, ...]] = ("cells",)
    positions: Buffer
    sequences: Buffer
    rope_positions: Buffer  # i32 [rows, 3]
    cells: Buffer

    def run_float(self, at: Arrays) -> None:
        rows = at.live(self.rope_positions)
        for group in groups(at, self.positions, self.sequences):
            keep(at[self.cells][group.sequence], group, rows[group.rows])


@dataclass(frozen=True, eq=False)
class IndexKeys(Op):
    """Keeps raw keys; a row that completes a block stores the block's key: mean of its raw keys, RMS norm, rope at its
    first token. Taps lie at block ends, where no raw key is needed any more."""

    kind: ClassVar[str] = "index_keys"
    writes: ClassVar[tuple[str, ...]] = ("raw", "pooled")
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    rope_positions: Buffer
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
        back = PAGE_CELLS // self.pooled.shape[1] - 1
        for group in groups(at, self.positions, self.sequences):
            rows = at.live(self.x)[group.rows]
            keys = window(at[self.raw][group.sequence], group, rows, back)
            places = window(
                at[self.cells][group.sequence], group, at.live(self.rope_positions)[group.rows], back
            )
            self._pool(at, group, keys, places, exact)
            keep(at[self.raw][group.sequence], group, rows)

    def _pool(self, at: Arrays, group: Group, keys: Any, places: Any, exact: bool) -> None:
        """`keys`, `places`: from `ratio` - 1 tokens before the group on."""
        ratio = PAGE_CELLS // self.pooled.shape[1]
        positions = np.arange(group.position, group.position + group.count)
        done = np.flatnonzero(positions % ratio == ratio - 1)
        total: Float32 = keys[done]
        for i in range(1, ratio):
            total = total + keys[done + i]
        mean = total / np.float32(ratio)
        normed = (norm_contract if exact else norm_float)(mean, self.weight.decode(), self.eps)
        cos, sin = Rotary(self.table, self.axes).angles(at, places[done])
        block = positions[done] // ratio
        per_page = self.pooled.shape[1]
        page = at[self.page_table][group.sequence, block // per_page]
        at[self.pooled][page, block % per_page] = rotate(normed, cos, sin, exact)


def cell_positions(b: Builder, cells: Buffer) -> None:
    """Comes once, before the layers' `index_keys`."""
    s = b.steps
    b.emit(CellPositions(s.positions, s.sequences, s.rope_positions, cells))


def index_keys(b: Builder, x: Buffer, weight: Weight, pool: IndexPool, rotary: Rotary, eps: float) -> None:
    """Stores the keys x [rows, dim] of the step's rows."""
    dim = pool.raw.shape[-1]
    expect_width(x, dim)
    expect_shape(weight, dim)
    expect(rotary.dim <= dim, f"rope rotates {rotary.dim} values of index keys that have {dim}")
    s = b.steps
    b.emit(
        IndexKeys(
            s.positions, s.sequences, s.page_table, s.rope_positions, x, weight, rotary.table, rotary.axes,
            pool.cells, pool.raw, pool.pooled, eps,
        )
    )  # fmt: skip
