"""head_norm_rope: RMS norm of every head, then rotary embedding of its first values by positions on three axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.ops.arithmetic import Float32, fma, lane_dot
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_shape


@dataclass(frozen=True, eq=False)
class Rotary:
    """Angles by position, and which of a row's three positions each pair takes. Pairs are (i, i + pairs)."""

    table: Buffer  # f32 [max_positions, pairs, 2]: cos, sin
    axes: Buffer  # i32 [pairs]

    @property
    def dim(self) -> int:
        """Values of a head that turn."""
        return 2 * self.table.shape[1]

    def angles(self, at: Arrays, positions: NDArray[np.int32]) -> tuple[Float32, Float32]:
        """cos and sin [n, pairs] for positions [n, 3]."""
        axes = at[self.axes]
        angle = at[self.table][positions[:, axes], np.arange(len(axes))]
        return angle[..., 0], angle[..., 1]


def rotary_axes(pairs: int, sections: Sequence[int]) -> Buffer:
    """Interleaved multi-section rope: pair i takes the height where i % 3 == 1 and i < 3 sections[1], the width where
    i % 3 == 2 and i < 3 sections[2], else the first axis (Qwen3-VL). No sections: always the first axis."""
    i = np.arange(pairs)
    axes = np.zeros(pairs, np.int32)
    for axis in range(1, min(len(sections), 3)):
        axes[(i % 3 == axis) & (i < 3 * sections[axis])] = axis
    return Buffer("rotary_axes", axes.shape, "i32", "constant", data=axes)


def norm_float(x: Float32, weight: Float32, eps: float) -> Float32:
    """RMS norm over the last axis."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight)


def norm_contract(x: Float32, weight: Float32, eps: float) -> Float32:
    """The same in the contract's order."""
    mean = lane_dot(x, x) / np.float32(x.shape[-1])
    return np.asarray((x * (np.float32(1) / np.sqrt(mean + np.float32(eps)))[..., None]) * weight)


def rotate(x: Float32, cos: Float32, sin: Float32, exact: bool) -> Float32:
    """Turns the first 2 * pairs values of the last axis; `exact`: as the contract rounds."""
    pairs = cos.shape[-1]
    a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    out = x.copy()
    if exact:
        out[..., :pairs], out[..., pairs : 2 * pairs] = fma(a, cos, -(b * sin)), fma(b, cos, a * sin)
    else:
        out[..., :pairs], out[..., pairs : 2 * pairs] = a * cos - b * sin, b * cos + a * sin
    return out


@dataclass(frozen=True, eq=False)
class HeadNormRope(Op):
    """Head h of a row of x begins at h * stride."""

    kind: ClassVar[str] = "head_norm_rope"
    positions: Buffer  # i32 [rows, 3]
    table: Buffer
    axes: Buffer
    x: Buffer  # [rows, heads * stride]
    weight: Weight  # F32 [head_dim]
    out: Buffer  # [rows, heads * head_dim]
    stride: int
    eps: float

    def run_float(self, at: Arrays) -> None:
        self._run(at, exact=False)

    def run_contract(self, at: Arrays) -> None:
        self._run(at, exact=True)

    def _run(self, at: Arrays, exact: bool) -> None:
        x, out = at.live(self.x), at.live(self.out)
        heads = x.reshape(len(x), -1, self.stride)[..., : self.weight.shape[-1]]
        normed = (norm_contract if exact else norm_float)(heads, self.weight.decode(), self.eps)
        cos, sin = Rotary(self.table, self.axes).angles(at, at.live(self.positions))
        out[:] = rotate(normed, cos[:, None], sin[:, None], exact).reshape(out.shape)


def head_norm_rope(
    b: Builder, x: Buffer, weight: Weight, rotary: Rotary, eps: float, stride: int = 0
) -> Buffer:
    """[rows, heads * head_dim]; `stride`: values from head to head in x, where more than head_dim."""
    head_dim = weight.shape[-1]
    expect_shape(weight, head_dim)
    stride = stride or head_dim
    expect(x.shape[-1] % stride == 0, f"{x} is not a whole number of heads of {stride}")
    expect(rotary.dim <= head_dim, f"rope rotates {rotary.dim} values of heads that have {head_dim}")
    out = b.rows(x.shape[-1] // stride * head_dim, "head_norm", like=x)
    b.emit(HeadNormRope(b.steps.rope_positions, rotary.table, rotary.axes, x, weight, out, stride, eps))
    return out
