"""group_by_expert: (token, expert) pairs in order of experts, so that a weight block is decoded once for all."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strata.errors import FaultError
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op


@dataclass(frozen=True, eq=False)
class GroupByExpert(Op):
    """Pair p = row * k + rank; pairs of expert e, ascending, are pairs[offsets[e] : offsets[e + 1]]."""

    kind: ClassVar[str] = "group_by_expert"
    writes: ClassVar[tuple[str, ...]] = ("pairs", "offsets")
    topk_ids: Buffer  # i32 [rows, k]
    pairs: Buffer  # i32 [rows * k]
    offsets: Buffer  # i32 [num_experts + 1]

    def run_float(self, at: Arrays) -> None:
        ids = at.live(self.topk_ids).reshape(-1)
        experts = self.offsets.shape[0] - 1
        if len(ids) and not 0 <= ids.min() <= ids.max() < experts:
            raise FaultError(f"an expert id outside 0 to {experts - 1}")
        at[self.pairs][: len(ids)] = np.argsort(ids, kind="stable")
        at[self.offsets][0] = 0
        at[self.offsets][1:] = np.cumsum(np.bincount(ids, minlength=experts))


@dataclass(frozen=True, eq=False)
class ExpertGroups:
    """What `group_by_expert` leaves; `k` experts a token."""

    pairs: Buffer
    offsets: Buffer
    k: int

    @property
    def num_experts(self) -> int:
        """Experts of the layer."""
        return self.offsets.shape[0] - 1


def group_by_expert(b: Builder, topk_ids: Buffer, num_experts: int) -> ExpertGroups:
    """Groups of the chosen experts topk_ids i32 [rows, k]."""
    rows, k = topk_ids.shape
    pairs = Buffer(f"pairs.{topk_ids.name}", (rows * k,), "i32")
    offsets = Buffer(f"offsets.{topk_ids.name}", (num_experts + 1,), "i32")
    b.emit(GroupByExpert(topk_ids, pairs, offsets))
    return ExpertGroups(pairs, offsets, k)
