"""hadamard: turns groups of values so that each holds a part of all, before 4-bit cells round them."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect


@dataclass(frozen=True, eq=False)
class Hadamard(Op):
    """Every `group` values of a row times the Hadamard matrix in natural order, times group^-1/2: its own inverse."""

    kind: ClassVar[str] = "hadamard"
    x: Buffer  # [rows, width]
    out: Buffer  # [rows, width]
    group: int  # a power of two

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = turn(at.live(self.x), self.group)


def turn(x: Any, group: int) -> Any:
    """For h = 1, 2, 4, .. group / 2: values i and i + h (bit h of i clear) become their sum and difference; then each
    times float32(group^-1/2). Float32, one rounding an operation."""
    y, h = x.reshape(-1, group), 1
    while h < group:
        pairs = y.reshape(-1, group // (2 * h), 2, h)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        y, h = np.stack([a + b, a - b], axis=2), 2 * h
    return (y.reshape(-1, group) * np.float32(group**-0.5)).reshape(x.shape)


def hadamard(b: Builder, x: Buffer, group: int) -> Buffer:
    """Rows of x, every `group` values turned."""
    expect(group & (group - 1) == 0, f"groups of {group} values cannot be turned; a power of two can")
    expect(x.shape[-1] % group == 0, f"{x} is not whole groups of {group}")
    out = b.rows(x.shape[-1], "turned", like=x)
    b.emit(Hadamard(x, out, group))
    return out
