"""kv_store: writes the step's keys and values into their cells of the paged pool."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect_width, same_shape
from strata.ops.step import PAGE_CELLS


@dataclass(frozen=True, eq=False)
class LayerKV:
    """One layer's pools, f32 or f16 [num_pages, kv_heads, PAGE_CELLS, head_dim]."""

    k: Buffer
    v: Buffer

    @property
    def kv_heads(self) -> int:
        """Heads a cell stores."""
        return self.k.shape[1]

    @property
    def head_dim(self) -> int:
        """Values a head stores."""
        return self.k.shape[3]


@dataclass(frozen=True, eq=False)
class KvStore(Op):
    """Row r goes to cell positions[r] of sequence sequences[r]."""

    kind: ClassVar[str] = "kv_store"
    writes: ClassVar[tuple[str, ...]] = ("k_pool", "v_pool")
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    k: Buffer  # [rows, kv_heads * head_dim]
    v: Buffer
    k_pool: Buffer
    v_pool: Buffer

    def run_float(self, at: Arrays) -> None:
        n = at.count(self.k)
        positions, sequences = at[self.positions][:n], at[self.sequences][:n]
        pages = at[self.page_table][sequences, positions // PAGE_CELLS]
        for rows, pool in ((at.live(self.k), at[self.k_pool]), (at.live(self.v), at[self.v_pool])):
            heads, dim = pool.shape[1], pool.shape[3]
            pool[pages, :, positions % PAGE_CELLS] = rows.reshape(n, heads, dim).astype(pool.dtype)


def kv_store(b: Builder, k: Buffer, v: Buffer, kv: LayerKV) -> None:
    """Stores k and v [rows, kv_heads * head_dim]."""
    same_shape(k, v)
    expect_width(k, kv.kv_heads * kv.head_dim)
    s = b.steps
    b.emit(KvStore(s.positions, s.sequences, s.page_table, k, v, kv.k, kv.v))


def gather_cells(pool: Any, pages: Any, cells: int) -> Any:
    """The first `cells` cells of a sequence as float32 [kv_heads, cells, head_dim]."""
    heads, dim = pool.shape[1], pool.shape[3]
    count = -(-cells // PAGE_CELLS)
    rows = np.moveaxis(pool[pages[:count]], 1, 0).reshape(heads, count * PAGE_CELLS, dim)
    return rows[:, :cells].astype(np.float32)
