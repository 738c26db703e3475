"""causal_conv: depthwise convolution over a sequence's rows, then silu; earlier columns lie in a ring by position."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import fma, silu32
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.groups import groups, keep, taps, window
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_shape, expect_width
from strata.ops.step import MAX_STEP_ROWS


@dataclass(frozen=True, eq=False)
class CausalConv(Op):
    """The last tap of the kernel meets the newest column, tap j the column (kernel - 1 - j) * dilation before it.

    A ring [slots, MAX_STEP_ROWS + back, channels] is written by position, so that rejected rows need no undoing: rows
    that follow overwrite them, none reads a column past its own, and the `back` columns before a step outlive it.
    """

    kind: ClassVar[str] = "causal_conv"
    writes: ClassVar[tuple[str, ...]] = ("ring", "out")
    positions: Buffer
    sequences: Buffer
    tap_positions: Buffer
    tap_slots: Buffer
    x: Buffer  # [rows, channels]
    weight: Weight  # F32 [channels, kernel]
    ring: Buffer
    out: Buffer  # [rows, channels]
    dilation: int
    tapped: bool  # the chunk form: taps write the columns that the next rows need

    @property
    def back(self) -> int:
        """Columns before a row's own that it reads."""
        return (self.weight.shape[1] - 1) * self.dilation

    def run_float(self, at: Arrays) -> None:
        self._run(at, self._convolve_float)

    def run_contract(self, at: Arrays) -> None:
        self._run(at, self._convolve_contract)

    def _run(self, at: Arrays, convolve: Any) -> None:
        ring, x = at[self.ring], at.live(self.x)
        for group in groups(at, self.positions, self.sequences):
            rows = x[group.rows]
            columns = window(ring[group.sequence], group, rows, self.back)
            at.live(self.out)[group.rows] = convolve(columns, group.count)
            keep(ring[group.sequence], group, rows)
            for position, slot in taps(at, self.tap_positions, self.tap_slots, group) if self.tapped else ():
                last = np.arange(position - self.back, position)
                ring[slot][last % ring.shape[1]] = columns[last - group.position + self.back]

    def _convolve_float(self, columns: Any, count: int) -> Any:
        weight, d = self.weight.decode(), self.dilation
        y = sum(weight[:, j] * columns[j * d : j * d + count] for j in range(weight.shape[1]))
        with np.errstate(over="ignore"):
            return y / (1 + np.exp(-y))

    def _convolve_contract(self, columns: Any, count: int) -> Any:
        weight, d = self.weight.decode(), self.dilation
        y = np.zeros((count, columns.shape[1]), np.float32)
        for j in range(weight.shape[1]):
            y = fma(weight[:, j], columns[j * d : j * d + count], y)
        return silu32(y)


def causal_conv(b: Builder, x: Buffer, weight: Weight, ring: Buffer, dilation: int = 1) -> Buffer:
    """silu of the convolved rows, the shape of x [rows, channels]."""
    channels, kernel = weight.shape[0], weight.shape[-1]
    expect_shape(weight, channels, kernel)
    expect_width(x, channels)
    least = MAX_STEP_ROWS + (kernel - 1) * dilation
    expect(
        ring.shape[1] >= least and ring.shape[2] == channels,
        f"{ring} does not hold {least} rows of {channels}",
    )
    s, out = b.steps, b.rows(channels, "conv", like=x)
    b.emit(
        CausalConv(
            s.positions, s.sequences, s.tap_positions, s.tap_slots, x, weight, ring, out, dilation,
            tapped=b.form == "chunk",
        )
    )  # fmt: skip
    return out
