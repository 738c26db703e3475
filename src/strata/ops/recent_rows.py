"""recent_rows: what the trunk leaves of a sequence's last rows, in a ring by position, for a draft layer to read."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_width


@dataclass(frozen=True, eq=False)
class KeepRecent(Op):
    """ring[sequences[r], positions[r] mod depth] = x[r], for the last `depth` live rows.

    A step's rows never fill a ring (depth is RING_ROWS), a chunk's rows are of one sequence: no place is written twice.
    """

    kind: ClassVar[str] = "keep_recent"
    writes: ClassVar[tuple[str, ...]] = ("ring",)
    positions: Buffer
    sequences: Buffer
    x: Buffer  # [rows, width]
    ring: Buffer  # [sequences, depth, width]

    def run_float(self, at: Arrays) -> None:
        x, depth = at.live(self.x), self.ring.shape[1]
        rows = np.arange(max(len(x) - depth, 0), len(x))
        at[self.ring][at[self.sequences][rows], at[self.positions][rows] % depth] = x[rows]


@dataclass(frozen=True, eq=False)
class RecallRecent(Op):
    """out[r] = ring[sequences[r], positions[r] mod depth]."""

    kind: ClassVar[str] = "recall_recent"
    positions: Buffer
    sequences: Buffer
    ring: Buffer  # [sequences, depth, width]
    out: Buffer  # [rows, width]

    def run_float(self, at: Arrays) -> None:
        n, depth = at.count(self.out), self.ring.shape[1]
        at[self.out][:n] = at[self.ring][at[self.sequences][:n], at[self.positions][:n] % depth]


def keep_recent(b: Builder, x: Buffer, ring: Buffer) -> None:
    """Keeps the step's rows x [rows, width] in ring [sequences, depth, width]."""
    expect_width(ring, x.shape[-1])
    expect(ring.shape[1] & (ring.shape[1] - 1) == 0, f"{ring} is no power of two deep")
    b.emit(KeepRecent(b.steps.positions, b.steps.sequences, x, ring))


def recall_recent(b: Builder, ring: Buffer) -> Buffer:
    """Of each row of the step, what was kept of its sequence at its position, [rows, width]."""
    out = b.rows(ring.shape[-1], "recalled")
    b.emit(RecallRecent(b.steps.positions, b.steps.sequences, ring, out))
    return out
