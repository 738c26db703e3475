"""router: each row's experts and their mixing weights, from its router logits."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.errors import FaultError
from strata.ops.arithmetic import exp32, lane_sum
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.linear import linear
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect

MAX_EXPERTS_PER_TOKEN = 64  # the kernel's sorted list of keys


@dataclass(frozen=True, eq=False)
class Router(Op):
    """Top k of the softmax over all experts, best first, ties to the lower index (contract.h `topk_key`).

    Weights sum to 1 over the k when `renormalise`, else they are shares of all experts.
    """

    kind: ClassVar[str] = "router"
    writes: ClassVar[tuple[str, ...]] = ("topk_ids", "topk_weights")
    logits: Buffer  # [rows, num_experts]
    topk_ids: Buffer  # i32 [rows, k]
    topk_weights: Buffer  # f32 [rows, k]
    renormalise: bool

    def run_float(self, at: Arrays) -> None:
        logits, ids = at.live(self.logits), self._choose(at)
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        chosen = np.take_along_axis(p, ids, axis=-1)
        total = (chosen if self.renormalise else p).sum(axis=-1, keepdims=True)
        at.live(self.topk_weights)[:] = chosen / total

    def run_contract(self, at: Arrays) -> None:
        logits, ids = at.live(self.logits), self._choose(at)
        best = np.take_along_axis(logits, ids[:, :1], axis=-1)
        e = exp32(np.take_along_axis(logits, ids, axis=-1) - best)
        total = lane_sum(e if self.renormalise else exp32(logits - best))
        at.live(self.topk_weights)[:] = e / total[:, None]

    def _choose(self, at: Arrays) -> NDArray[np.int64]:
        logits = at.live(self.logits)
        if not np.isfinite(logits).all():
            raise FaultError("a non-finite router logit")
        ids: NDArray[np.int64] = np.argsort(-logits, axis=-1, kind="stable")[:, : self.topk_ids.shape[1]]
        at.live(self.topk_ids)[:] = ids
        return ids


def router(b: Builder, x: Buffer, weight: Weight, k: int, *, renormalise: bool) -> tuple[Buffer, Buffer]:
    """Ids i32 [rows, k] and weights f32 [rows, k] of the experts that rows x [rows, hidden] choose.

    `weight` [num_experts, hidden] gives the logits.
    """
    experts = weight.shape[0]
    expect(
        1 <= k <= min(experts, MAX_EXPERTS_PER_TOKEN),
        f"tensor {weight.name} has {experts} experts, of which {k} a token are to be chosen; "
        f"at least 1 and at most {min(experts, MAX_EXPERTS_PER_TOKEN)} can be",
    )
    logits = linear(b, x, weight)
    ids, weights = b.rows(k, "topk_ids", like=x, dtype="i32"), b.rows(k, "topk_weights", like=x)
    b.emit(Router(logits, ids, weights, renormalise))
    return ids, weights
