"""rms_norm: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019), over rows or over heads of them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.ops.arithmetic import lane_dot
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_shape


@dataclass(frozen=True, eq=False)
class RmsNorm(Op):
    """Normalises each piece of a row that is as wide as the weight: the whole row, or every head of it."""

    kind: ClassVar[str] = "rms_norm"
    x: Buffer  # [rows, width]
    weight: Weight  # F32 [width of a piece]
    out: Buffer  # [rows, width]
    eps: float

    def run_float(self, at: Arrays) -> None:
        x = self._pieces(at.live(self.x))
        mean = np.mean(x * x, axis=-1, keepdims=True)
        self._pieces(at.live(self.out))[:] = x / np.sqrt(mean + np.float32(self.eps)) * self.weight.decode()

    def run_contract(self, at: Arrays) -> None:
        x = self._pieces(at.live(self.x))
        mean = lane_dot(x, x) / np.float32(x.shape[-1])
        scale = np.float32(1) / np.sqrt(mean + np.float32(self.eps))
        self._pieces(at.live(self.out))[:] = (x * scale[:, None]) * self.weight.decode()

    def _pieces(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return rows.reshape(-1, self.weight.shape[-1])


def rms_norm(b: Builder, x: Buffer, weight: Weight, eps: float) -> Buffer:
    """Normalised rows, the shape of x."""
    expect_shape(weight, x.shape[-1])
    return head_norm(b, x, weight, eps)


def head_norm(b: Builder, x: Buffer, weight: Weight, eps: float) -> Buffer:
    """x [rows, heads * head_dim] with every head normalised alone; weight [head_dim]."""
    head_dim = weight.shape[-1]
    expect_shape(weight, head_dim)
    expect(
        x.shape[-1] % head_dim == 0, f"{x} is not a whole number of heads of {head_dim}, as {weight.name} has"
    )
    out = b.rows(x.shape[-1], "norm", like=x)
    b.emit(RmsNorm(x, weight, out, eps))
    return out
