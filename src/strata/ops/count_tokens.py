"""count_tokens: output tokens into the plane of penalty counts, on devices whose memory the host does not write."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from strata.errors import FaultError
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op

ONE = 2  # one output token in the plane; bit 0 says that the prompt has it


@dataclass(frozen=True, eq=False)
class CountBuffers:
    """What the next sampling counts first: the tokens that became output since the last."""

    num: Buffer  # i32 [1]
    slots: Buffer  # i32 [rows], rows of the counts plane
    tokens: Buffer  # i32 [rows]

    @classmethod
    def create(cls, rows: int) -> Self:
        """Buffers for up to `rows` tokens at once."""
        num = Buffer("num_counted", (1,), "i32", "input")
        slots, tokens = (
            Buffer(f"counted_{name}", (rows,), "i32", "input", live=num) for name in ("slots", "tokens")
        )
        return cls(num, slots, tokens)


@dataclass(frozen=True, eq=False)
class CountTokens(Op):
    """counts[slots[i], tokens[i]] += ONE for the live rows; the same place may come twice."""

    kind: ClassVar[str] = "count_tokens"
    writes: ClassVar[tuple[str, ...]] = ("counts",)
    slots: Buffer
    tokens: Buffer
    counts: Buffer  # i32 [slots, vocab]

    def run_float(self, at: Arrays) -> None:
        slots, tokens = at.live(self.slots), at.live(self.tokens)
        if not _inside(slots, self.counts.shape[0]) or not _inside(tokens, self.counts.shape[1]):
            raise FaultError("count_tokens: a slot or token outside its table")
        np.add.at(at[self.counts], (slots, tokens), ONE)


def _inside(values: NDArray[Any], end: int) -> bool:
    return bool(((values >= 0) & (values < end)).all())


def count_tokens(b: Builder, buffers: CountBuffers, counts: Buffer) -> None:
    """Begins a sample program."""
    b.emit(CountTokens(buffers.slots, buffers.tokens, counts))
