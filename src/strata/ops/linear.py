"""linear: y = x @ W^T, for quantised weights (int8 activations) and float weights (float32 activations)."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.ops.arithmetic import fma, lane_dot, segment_bounds
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Q8, Arrays, Op
from strata.ops.quantize import quantized
from strata.ops.shapes import expect, expect_width
from strata.quants import IntegerBlocks

_COLUMNS = 1024  # output features computed at a time, to bound the reference's memory


@dataclass(frozen=True, eq=False)
class LinearQ(Op):
    """Product with a quantised weight, in the contract's block order."""

    kind: ClassVar[str] = "linear_q"
    x: Buffer  # q8 [rows, k]
    weight: Weight  # [n, k]
    out: Buffer  # f32 [rows, n]

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = at.live(self.x) @ at.decoded(self.weight).T

    def run_contract(self, at: Arrays) -> None:
        at.live(self.out)[:] = contract_rows(at.live(self.x), self.weight)


@dataclass(frozen=True, eq=False)
class LinearF(Op):
    """Product with an F32, F16 or BF16 weight: 32 lanes over k, then the tree.

    `chunk`: of a prompt's rows; a device may take them by matrix units, to NRMSE 2e-5; a row's bits are its own.
    """

    kind: ClassVar[str] = "linear_f"
    x: Buffer  # f32 [rows, k]
    weight: Weight  # [n, k]
    out: Buffer  # f32 [rows, n]
    chunk: bool = False

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = at.live(self.x) @ at.decoded(self.weight).T

    def run_contract(self, at: Arrays) -> None:
        at.live(self.out)[:] = float_rows(at.live(self.x), at.decoded(self.weight))


def linear(b: Builder, x: Buffer, weight: Weight, out: Buffer | None = None) -> Buffer:
    """Rows [rows, n] of x [rows, k] times the weight [n, k], transposed; into `out` where one is given."""
    expect(len(weight.shape) == 2, f"tensor {weight.name} has shape {list(weight.shape)}, expected a matrix")
    n, k = weight.shape
    expect(x.shape[-1] == k, f"tensor {weight.name} takes {k} values a row, but its input has {x.shape[-1]}")
    if out is None:
        out = b.rows(n, weight.name.removesuffix(".weight"), like=x)
    expect_width(out, n)
    chunk = b.form == "chunk"
    b.emit(LinearF(x, weight, out, chunk) if weight.is_float else LinearQ(quantized(b, x), weight, out))
    return out


def contract_rows(x: Q8, weight: Weight) -> NDArray[np.float32]:
    """[rows, n] from q8 rows and a quantised weight [n, k], in the contract's order."""
    n, k = weight.shape
    raw = weight.data.reshape(n, -1)
    out = np.empty((len(x.codes), n), np.float32)
    for i in range(0, n, _COLUMNS):
        part = np.ascontiguousarray(raw[i : i + _COLUMNS])
        out[:, i : i + _COLUMNS] = contract_product(x, weight.format.integer_form(part, len(part), k))
    return out


def float_rows(x: NDArray[np.float32], matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """[rows, n] from float rows [rows, k] and a matrix [n, k]: 32 lanes over k, then the tree."""
    return np.stack([lane_dot(matrix, row) for row in x])


def contract_product(x: Q8, w: IntegerBlocks) -> NDArray[np.float32]:
    """[rows, n] from q8 rows and integer blocks [n * k / 32]: blocks ascending inside segments, segments in order."""
    rows, k = x.codes.shape
    blocks = k // 32
    step = _block_step(x, w, blocks)
    bounds = segment_bounds(blocks)
    total = np.zeros((rows, len(w.codes) // blocks), np.float32)
    for begin, end in pairwise(bounds):
        y = np.zeros_like(total)
        for i in range(begin, end):
            y = step(i, y)
        total = total + y
    return total


def _block_step(
    x: Q8, w: IntegerBlocks, blocks: int
) -> Callable[[int, NDArray[np.float32]], NDArray[np.float32]]:
    """A function (block index, y [rows, n]) -> y after that block (contract.h `dot_step`, `min_step`).

    A scale that a format stores once per 32 weights belongs to the float scale (exactly), one per 16 to the integer
    sum. Integer sums are taken in float32, where they are exact: every one stays below 2^24 (tests/quants).
    """
    rows = len(x.codes)
    codes = w.codes.reshape(-1, blocks, 2, 16)
    scales = w.scales.reshape(-1, blocks, 2).astype(np.float32)
    d = w.d.reshape(-1, blocks, 2)
    q = x.codes.reshape(rows, blocks, 2, 16).astype(np.float32)
    minimum = _minimum_step(x, w, blocks)

    def step(i: int, y: NDArray[np.float32]) -> NDArray[np.float32]:
        sums = [q[:, i, h] @ codes[:, i, h].astype(np.float32).T for h in (0, 1)]
        d_a = x.scales[:, i, None]
        if w.scale16:
            for h in (0, 1):
                y = fma(sums[h], (d[:, i, h] * scales[:, i, h]) * d_a, y)
        elif w.halves:
            y = fma(sums[0] * scales[:, i, 0] + sums[1] * scales[:, i, 1], d[:, i, 0] * d_a, y)
        else:
            y = fma(sums[0] + sums[1], (d[:, i, 0] * scales[:, i, 0]) * d_a, y)
        return y if minimum is None else minimum(i, y)

    return step


def _minimum_step(
    x: Q8, w: IntegerBlocks, blocks: int
) -> Callable[[int, NDArray[np.float32]], NDArray[np.float32]] | None:
    """The minimums' term after a block, or None for formats without."""
    if w.mins is None or w.dmin is None:
        return None
    mins = w.mins.reshape(-1, blocks, 2).astype(np.float32)
    dmin = w.dmin.reshape(-1, blocks)
    sums = x.sums.reshape(len(x.codes), blocks, 2).astype(np.float32)

    def step(i: int, y: NDArray[np.float32]) -> NDArray[np.float32]:
        low, high, d_a = sums[:, i, 0, None], sums[:, i, 1, None], x.scales[:, i, None]
        if w.halves:
            return fma(low * mins[:, i, 0] + high * mins[:, i, 1], dmin[:, i] * d_a, y)
        return fma(dmin[:, i] * mins[:, i, 0], (low + high) * d_a, y)

    return step
