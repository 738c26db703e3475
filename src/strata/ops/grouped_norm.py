"""grouped_norm: RMS norm over each of several equal slices of a row, with a weight as wide as the row."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strata.ops.arithmetic import lane_dot
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_shape


@dataclass(frozen=True, eq=False)
class GroupedNorm(Op):
    """Statistics per slice."""

    kind: ClassVar[str] = "grouped_norm"
    x: Buffer  # [rows, width]
    weight: Weight  # F32 [width]
    out: Buffer  # [rows, width]
    groups: int
    eps: float

    def run_float(self, at: Arrays) -> None:
        x = at.live(self.x)
        slices = x.reshape(len(x), self.groups, x.shape[1] // self.groups)
        mean = np.mean(slices * slices, axis=-1, keepdims=True)
        normed = slices / np.sqrt(mean + np.float32(self.eps))
        at.live(self.out)[:] = normed.reshape(x.shape) * self.weight.decode()

    def run_contract(self, at: Arrays) -> None:
        x = at.live(self.x)
        slices = x.reshape(len(x), self.groups, x.shape[1] // self.groups)
        mean = lane_dot(slices, slices) / np.float32(slices.shape[-1])
        scale = np.float32(1) / np.sqrt(mean + np.float32(self.eps))
        at.live(self.out)[:] = (slices * scale[..., None]).reshape(x.shape) * self.weight.decode()


def grouped_norm(b: Builder, x: Buffer, weight: Weight, groups: int, eps: float) -> Buffer:
    """Normalised rows, the shape of x."""
    width = x.shape[-1]
    expect(width % groups == 0, f"{x} does not divide into {groups} slices")
    expect_shape(weight, width)
    out = b.rows(width, "grouped_norm", like=x)
    b.emit(GroupedNorm(x, weight, out, groups, eps))
    return out
