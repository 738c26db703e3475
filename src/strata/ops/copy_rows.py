"""copy_columns: columns of rows to a place in other rows; joins parts of a row, and keeps rows for the host."""

from dataclasses import dataclass
from typing import ClassVar

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_width


@dataclass(frozen=True, eq=False)
class CopyColumns(Op):
    """out[r, out_column : out_column + width] = x[r, column : column + width] for the live rows of x."""

    kind: ClassVar[str] = "copy_columns"
    x: Buffer
    out: Buffer  # as many rows as x, or more
    column: int
    out_column: int
    width: int

    def run_float(self, at: Arrays) -> None:
        x = at.live(self.x)[:, self.column : self.column + self.width]
        at[self.out][: len(x), self.out_column : self.out_column + self.width] = x


def copy_rows(b: Builder, x: Buffer, out: Buffer) -> None:
    """Copies x [rows, width] into a persistent buffer of at least as many rows."""
    expect_width(out, x.shape[-1])
    b.emit(CopyColumns(x, out, 0, 0, x.shape[-1]))


def copy_columns(b: Builder, x: Buffer, out: Buffer, column: int, out_column: int, width: int) -> None:
    """Copies `width` columns of x, from `column` on, to `out_column` of out."""
    fits = column + width <= x.shape[-1] and out_column + width <= out.shape[-1]
    expect(fits, f"{width} columns from {column} of {x} to {out_column} of {out}")
    b.emit(CopyColumns(x, out, column, out_column, width))


def concat(b: Builder, first: Buffer, second: Buffer, column: int, width: int) -> Buffer:
    """Rows [first | columns of second]."""
    out = b.rows(first.shape[-1] + width, "joined", like=first)
    copy_columns(b, first, out, 0, 0, first.shape[-1])
    copy_columns(b, second, out, column, first.shape[-1], width)
    return out
