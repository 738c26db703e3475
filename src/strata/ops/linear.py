"""linear: y = x @ W^T, for quantised weights (int8 activations) and float weights (float32 activations)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.ops.arithmetic import fma, lane_dot, segment_bounds
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Q8, Arrays, Op
from strata.ops.quantize import quantized
from strata.ops.shapes import expect
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
        at.live(self.out)[:] = at.live(self.x) @ self.weight.decode().T

    def run_contract(self, at: Arrays) -> None:
        x, out = at.live(self.x), at.live(self.out)
        n, k = self.weight.shape
        raw = self.weight.data.reshape(n, -1)
        for i in range(0, n, _COLUMNS):
            part = np.ascontiguousarray(raw[i : i + _COLUMNS])
            out[:, i : i + _COLUMNS] = contract_product(x, self.weight.format.integer_form(part, len(part), k))


@dataclass(frozen=True, eq=False)
class LinearF(Op):
    """Product with an F32, F16 or BF16 weight: 32 lanes over k, then the tree."""

    kind: ClassVar[str] = "linear_f"
    x: Buffer  # f32 [rows, k]
    weight: Weight  # [n, k]
    out: Buffer  # f32 [rows, n]

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = at.live(self.x) @ self.weight.decode().T

    def run_contract(self, at: Arrays) -> None:
        weight = self.weight.decode()
        out = at.live(self.out)
        for r, row in enumerate(at.live(self.x)):
            out[r] = lane_dot(weight, row)


def linear(b: Builder, x: Buffer, weight: Weight) -> Buffer:
    """Rows [rows, n] of x [rows, k] times the weight [n, k], transposed."""
    expect(len(weight.shape) == 2, f"tensor {weight.name} has shape {list(weight.shape)}, expected a matrix")
    n, k = weight.shape
    expect(x.shape[-1] == k, f"tensor {weight.name} takes {k} values a row, but its input has {x.shape[-1]}")
    out = b.rows(n, weight.name.removesuffix(".weight"), like=x)
    b.emit(LinearF(x, weight, out) if weight.is_float else LinearQ(quantized(b, x), weight, out))
    return out


def contract_product(x: Q8, w: IntegerBlocks) -> NDArray[np.float32]:
    """[rows, n] from q8 rows and integer blocks [n * k / 32]: y = fma(I_b, d_w d_a, y), b ascending in segments."""
    rows, k = x.codes.shape
    blocks = k // 32
    step = _block_step(x, w, blocks)
    bounds = segment_bounds(blocks)
    n = len(w.codes) // blocks
    total = None
    for begin, end in zip(bounds, bounds[1:], strict=False):
        y = np.zeros((rows, n), np.float32)
        for i in range(begin, end):
            y = step(i, y)
        total = y if total is None else total + y
    assert total is not None
    return total


def _block_step(
    x: Q8, w: IntegerBlocks, blocks: int
) -> Callable[[int, NDArray[np.float32]], NDArray[np.float32]]:
    """A function (block index, y [rows, n]) -> y after that block.

    Integer sums are taken in float32, where they are exact: every one stays below 2^24 (tests/quants).
    """
    rows = len(x.codes)
    codes = w.codes.reshape(-1, blocks, 2, 16)
    scales = w.scales.reshape(-1, blocks, 2).astype(np.float32)
    d = w.d.reshape(-1, blocks, 2)
    mins = None if w.mins is None else w.mins.reshape(-1, blocks, 2).astype(np.float32)
    dmin = None if w.dmin is None else w.dmin.reshape(-1, blocks)
    q = x.codes.reshape(rows, blocks, 2, 16).astype(np.float32)
    sums = x.sums.reshape(rows, blocks, 2).astype(np.float32)
    one_scale = bool((d[..., 0] == d[..., 1]).all()) and not w.scale16

    def step(i: int, y: NDArray[np.float32]) -> NDArray[np.float32]:
        halves = [(q[:, i, h] @ codes[:, i, h].astype(np.float32).T) * scales[:, i, h] for h in (0, 1)]
        d_a = x.scales[:, i, None]
        if one_scale:
            y = fma(halves[0] + halves[1], d[:, i, 0] * d_a, y)
        else:
            for h in (0, 1):
                y = fma(halves[h], d[:, i, h] * d_a, y)
        if mins is not None and dmin is not None:
            smallest = sums[:, i, 0, None] * mins[:, i, 0] + sums[:, i, 1, None] * mins[:, i, 1]
            y = fma(smallest, dmin[:, i] * d_a, y)
        return y

    return step
