"""pass_draft: hands sampled drafts to the pass of the draft layer that follows, and to the host."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op

MAX_DRAFTS = 7  # in a row: with the token before them they fill a bucket of 8


@dataclass(frozen=True, eq=False)
class DraftResults:
    """`depth` says the how manyth draft of a chain this pass makes; `drafts[depth]` receives ids and bits of
    log-probabilities of all rows."""

    depth: Buffer  # i32 [1]
    drafts: Buffer  # i32 [MAX_DRAFTS, 2, rows]

    @classmethod
    def create(cls, rows: int) -> Self:
        """For chains of up to `rows` sequences."""
        return cls(
            Buffer("draft_depth", (1,), "i32", "input"),
            Buffer("drafts", (MAX_DRAFTS, 2, rows), "i32", "polled"),
        )

    @staticmethod
    def read(drafts: Any, depth: int, rows: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Ids i32 [depth, rows] and their log-probabilities, after so many passes."""
        found = np.array(drafts[:depth, :, :rows])
        return found[:, 0], np.ascontiguousarray(found[:, 1]).view(np.float32)


@dataclass(frozen=True, eq=False)
class PassDraft(Op):
    """tokens[r] = ids[r], or 0 where there is none; drafts[depth] gets ids and log-probabilities as they are."""

    kind: ClassVar[str] = "pass_draft"
    writes: ClassVar[tuple[str, ...]] = ("tokens", "drafts")
    depth: Buffer
    ids: Buffer  # i32 [rows]
    logprobs: Buffer  # f32 [rows]
    tokens: Buffer  # i32 [rows]
    drafts: Buffer

    def run_float(self, at: Arrays) -> None:
        ids, logprobs = at.live(self.ids), at.live(self.logprobs)
        at[self.tokens][: len(ids)] = np.maximum(ids, 0)
        slot = at[self.drafts][int(at[self.depth][0]) % MAX_DRAFTS]
        slot[0, : len(ids)], slot[1, : len(ids)] = ids, logprobs.view(np.int32)


def pass_draft(b: Builder, results: DraftResults, ids: Buffer, logprobs: Buffer, tokens: Buffer) -> None:
    """Ends a pass of a draft layer."""
    b.emit(PassDraft(results.depth, ids, logprobs, tokens, results.drafts))
