"""kv_store: writes the step's keys and values into their cells of the paged pool, and the formats of cells."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import fma
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.hadamard import hadamard
from strata.ops.kv_fetch import ResidentKV
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect_width, same_shape
from strata.ops.step import PAGE_CELLS

KV_GROUP = 64  # values of a quantised cell that share a scale


@dataclass(frozen=True, eq=False)
class LayerKV:
    """One layer's pools, f32, f16 or i8 [num_pages, kv_heads, PAGE_CELLS, head_dim], or u8 of half that width.

    u8 pools hold two 4-bit codes a byte, of rotated values. i8 and u8 pools have scales, f16 [num_pages, kv_heads,
    PAGE_CELLS, head_dim / KV_GROUP]; narrower heads have one each.
    """

    k: Buffer
    v: Buffer
    k_scales: Buffer | None = None
    v_scales: Buffer | None = None
    resident: ResidentKV | None = None  # of layers whose cells lie in RAM

    @property
    def kv_heads(self) -> int:
        """Heads a cell stores."""
        return self.k.shape[1]

    @property
    def head_dim(self) -> int:
        """Values a head stores."""
        return cell_values(self.k)


def cell_values(pool: Buffer) -> int:
    """Values of a head's cell."""
    return pool.shape[3] * (2 if pool.dtype == "u8" else 1)


def rotated(b: Builder, x: Buffer, pool: Buffer) -> Buffer:
    """Heads of x as the pool holds them; the same turn leads back."""
    return hadamard(b, x, min(KV_GROUP, cell_values(pool))) if pool.dtype == "u8" else x


@dataclass(frozen=True, eq=False)
class KvStore(Op):
    """Row r goes to cell positions[r] of sequence sequences[r]."""

    kind: ClassVar[str] = "kv_store"
    writes: ClassVar[tuple[str, ...]] = ("k_pool", "v_pool", "k_scales", "v_scales")
    positions: Buffer
    sequences: Buffer
    page_table: Buffer
    k: Buffer  # [rows, kv_heads * head_dim]
    v: Buffer
    k_pool: Buffer
    v_pool: Buffer
    k_scales: Buffer | None
    v_scales: Buffer | None
    resident: ResidentKV | None = None  # devices refresh a resident group here, others in kv_fetch

    def run_float(self, at: Arrays) -> None:
        n = at.count(self.k)
        positions, sequences = at[self.positions][:n], at[self.sequences][:n]
        cells = (at[self.page_table][sequences, positions // PAGE_CELLS], slice(None), positions % PAGE_CELLS)
        for x, pool, scales in ((self.k, self.k_pool, self.k_scales), (self.v, self.v_pool, self.v_scales)):
            rows = at.live(x).reshape(n, pool.shape[1], cell_values(pool))
            if scales is None:
                at[pool][cells] = rows.astype(at[pool].dtype)
            else:
                encode = quantize_nibbles if pool.dtype == "u8" else quantize_cells
                at[pool][cells], at[scales][cells] = encode(rows, scales.shape[3])


def kv_store(b: Builder, k: Buffer, v: Buffer, kv: LayerKV) -> None:
    """Stores k and v [rows, kv_heads * head_dim]."""
    same_shape(k, v)
    expect_width(k, kv.kv_heads * kv.head_dim)
    s = b.steps
    pools = (kv.k, kv.v, kv.k_scales, kv.v_scales)
    k, v = rotated(b, k, kv.k), rotated(b, v, kv.v)
    b.emit(KvStore(s.positions, s.sequences, s.page_table, k, v, *pools, kv.resident))


def quantize_cells(rows: Any, groups: int) -> tuple[Any, Any]:
    """int8 codes and f16 scales of heads [..., dim] in `groups` groups: scale = half(amax / 127), code =
    rint(x * (1 / scale)), held to 127."""
    parts, scales, inverse = _scaled(rows, groups, 127)
    codes = np.clip(np.rint(parts * inverse), -127, 127).astype(np.int8)
    return codes.reshape(rows.shape), scales


def quantize_nibbles(rows: Any, groups: int) -> tuple[Any, Any]:
    """4-bit codes of heads [..., dim] as u8 [..., dim / 2], and their f16 scales: scale = half(amax / 15), code =
    rint(fma(x * (1 / scale), 0.5, 7.5)), held to 0..15. Byte j of a group: code j low, code j + half a group high."""
    parts, scales, inverse = _scaled(rows, groups, 15)
    steps = fma(parts * inverse, np.array(0.5, np.float32), np.array(7.5, np.float32))
    codes = np.clip(np.rint(steps), 0, 15).astype(np.uint8)
    half = codes.shape[-1] // 2
    packed = codes[..., :half] | codes[..., half:] << 4
    return packed.reshape(*rows.shape[:-1], -1), scales


def _scaled(rows: Any, groups: int, steps: int) -> tuple[Any, Any, Any]:
    """Rows by group, scales half(amax / steps), and 1 / scale with 0 for 0."""
    parts = rows.reshape(*rows.shape[:-1], groups, -1)
    scales = (np.abs(parts).max(axis=-1) / np.float32(steps)).astype(np.float16)
    d = scales.astype(np.float32)
    return parts, scales, np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)[..., None]


def gather_cells(at: Arrays, pool: Buffer, scales: Buffer | None, pages: Any, cells: int) -> Any:
    """The first `cells` cells of a sequence as float32 [kv_heads, cells, head_dim], rotated where the pool is u8."""
    rows = _by_cell(at[pool], pages, cells)
    if scales is None:
        return rows.astype(np.float32)
    d = _by_cell(at[scales], pages, cells).astype(np.float32)
    codes = rows.reshape(*d.shape, -1)
    if pool.dtype == "u8":
        codes = np.concatenate([codes & 15, codes >> 4], axis=-1).astype(np.int8) * 2 - 15
    parts = codes.astype(np.float32) * d[..., None]
    return parts.reshape(*rows.shape[:-1], -1)


def _by_cell(pool: Any, pages: Any, cells: int) -> Any:
    heads, dim = pool.shape[1], pool.shape[3]
    count = -(-cells // PAGE_CELLS)
    return np.moveaxis(pool[pages[:count]], 1, 0).reshape(heads, count * PAGE_CELLS, dim)[:, :cells]
