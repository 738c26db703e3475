"""rms_norm: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strata.ops.arithmetic import lane_dot
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect_shape


@dataclass(frozen=True, eq=False)
class RmsNorm(Op):
    """Normalises each row of x over its width."""

    kind: ClassVar[str] = "rms_norm"
    x: Buffer  # [rows, width]
    weight: Weight  # F32 [width]
    out: Buffer  # [rows, width]
    eps: float

    def run_float(self, at: Arrays) -> None:
        x = at.live(self.x)
        mean = np.mean(x * x, axis=-1, keepdims=True)
        at.live(self.out)[:] = x / np.sqrt(mean + np.float32(self.eps)) * self.weight.decode()

    def run_contract(self, at: Arrays) -> None:
        x = at.live(self.x)
        mean = lane_dot(x, x) / np.float32(x.shape[-1])
        scale = np.float32(1) / np.sqrt(mean + np.float32(self.eps))
        at.live(self.out)[:] = (x * scale[:, None]) * self.weight.decode()


def rms_norm(b: Builder, x: Buffer, weight: Weight, eps: float) -> Buffer:
    """Normalised rows, the shape of x."""
    expect_shape(weight, x.shape[-1])
    out = b.rows(x.shape[-1], "norm", like=x)
    b.emit(RmsNorm(x, weight, out, eps))
    return out
