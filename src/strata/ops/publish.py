"""publish: hands a step's sampled tokens to the host through a ring, so that the host may read one step behind."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op

DEPTH = 4  # slots; the host is at most one step behind
FAULTY = 1 << 30  # in the row count, by devices that run ahead: a fault was reported before
_HEADER = 2  # step number, row count


@dataclass(frozen=True, eq=False)
class ResultsRing:
    """Slot step mod DEPTH holds [step, count, ids[rows], bits of logprobs[rows]]; the step number is written last."""

    step: Buffer  # i32 [1], from 1 up
    ring: Buffer  # i32 [DEPTH, 2 + 2 * rows]

    @classmethod
    def create(cls, rows: int) -> Self:
        """A ring for steps that sample up to `rows` rows."""
        return cls(
            Buffer("step", (1,), "i32", "input"),
            Buffer("results", (DEPTH, _HEADER + 2 * rows), "i32", "polled"),
        )

    @staticmethod
    def ids(ring: Any, step: int) -> NDArray[np.int32]:
        """A copy of the token ids of a step that has been published, i32 [count]."""
        slot = ring[step % DEPTH]
        assert slot[0] == step, f"step {step} has not been published"
        return np.array(slot[_HEADER : _HEADER + int(slot[1]) & ~FAULTY])

    @staticmethod
    def faulty(ring: Any, step: int) -> bool:
        """Whether a fault was reported up to a step that has been published."""
        return bool(ring[step % DEPTH][1] & FAULTY)

    @staticmethod
    def read(ring: Any, step: int) -> tuple[list[int], list[float]]:
        """(token ids, log-probabilities) of a step that has been published."""
        slot = ring[step % DEPTH]
        assert slot[0] == step, f"step {step} has not been published"
        count, rows = int(slot[1]) & ~FAULTY, (len(slot) - _HEADER) // 2
        ids, bits = slot[_HEADER : _HEADER + count], slot[_HEADER + rows : _HEADER + rows + count]
        return ids.tolist(), bits.view(np.float32).tolist()


@dataclass(frozen=True, eq=False)
class Publish(Op):
    """Copies ids and logprobs of the live rows into the ring."""

    kind: ClassVar[str] = "publish"
    writes: ClassVar[tuple[str, ...]] = ("ring",)
    step: Buffer
    ids: Buffer  # i32 [rows]
    logprobs: Buffer  # f32 [rows]
    ring: Buffer

    def run_float(self, at: Arrays) -> None:
        step, count, rows = int(at[self.step][0]), at.count(self.ids), self.ids.shape[0]
        slot = at[self.ring][step % DEPTH]
        slot[_HEADER : _HEADER + count] = at.live(self.ids)
        slot[_HEADER + rows : _HEADER + rows + count] = at.live(self.logprobs).view(np.int32)
        slot[1], slot[0] = count, step


def publish(b: Builder, ring: ResultsRing, ids: Buffer, logprobs: Buffer) -> None:
    """Ends a sample program."""
    b.emit(Publish(ring.step, ids, logprobs, ring.ring))
