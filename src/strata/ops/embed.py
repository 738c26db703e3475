"""embed: token ids to rows of the embedding, decoded exactly."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op


@dataclass(frozen=True, eq=False)
class Embed(Op):
    """out[r] = decode(weight[tokens[r]])."""

    kind: ClassVar[str] = "embed"
    tokens: Buffer  # i32 [rows]
    weight: Weight  # [vocab_size, hidden_size]
    out: Buffer  # [rows, hidden_size]

    def row_weight_bytes(self) -> int:
        """One row of the table."""
        return self.weight.nbytes // self.weight.shape[0]

    def run_float(self, at: Arrays) -> None:
        rows = self.weight.data.reshape(self.weight.shape[0], -1)
        n = at.count(self.out)
        tokens = at[self.tokens][:n]
        at[self.out][:n] = self.weight.format.decode(np.ascontiguousarray(rows[tokens])).reshape(n, -1)


def embed(b: Builder, weight: Weight, tokens: Buffer | None = None) -> Buffer:
    """Embedding rows [rows, hidden_size] of the step's tokens, or of other ones."""
    out = b.rows(weight.shape[1], "embed")
    b.emit(Embed(b.steps.tokens if tokens is None else tokens, weight, out))
    return out
