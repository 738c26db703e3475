"""copy_rows: keeps rows where the host, or another program, reads them."""

from dataclasses import dataclass
from typing import ClassVar

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect_width


@dataclass(frozen=True, eq=False)
class CopyRows(Op):
    """out[r] = x[r] for the live rows."""

    kind: ClassVar[str] = "copy_rows"
    x: Buffer  # [rows, width]
    out: Buffer  # [rows or more, width]

    def run_float(self, at: Arrays) -> None:
        x = at.live(self.x)
        at[self.out][: len(x)] = x


def copy_rows(b: Builder, x: Buffer, out: Buffer) -> None:
    """Copies x [rows, width] into a persistent buffer of at least as many rows."""
    expect_width(out, x.shape[-1])
    b.emit(CopyRows(x, out))
