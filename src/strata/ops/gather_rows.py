"""gather_rows: picks the rows whose logits are wanted."""

from dataclasses import dataclass
from typing import ClassVar

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op


@dataclass(frozen=True, eq=False)
class GatherRows(Op):
    """out[i] = x[index[i]]."""

    kind: ClassVar[str] = "gather_rows"
    index: Buffer  # i32 [n]
    x: Buffer  # [rows, width]
    out: Buffer  # [n, width]

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = at[self.x][at.live(self.index)]


def gather_logit_rows(b: Builder, x: Buffer) -> Buffer:
    """Rows of x [rows, width] named by the step's `logit_rows`."""
    index = b.steps.logit_rows
    out = b.rows(x.shape[-1], "wanted", like=index)
    b.emit(GatherRows(index, x, out))
    return out
