"""Joining experts: the weighted sum of a token's routed experts, and the gated addition of its shared expert."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strata.ops.arithmetic import Float32, fma, sigmoid32
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_width, same_shape


@dataclass(frozen=True, eq=False)
class Combine(Op):
    """out[r] = sum of weights[r, i] * expert_rows[r * k + i] in rank order: out = fma(w, y, out) from +0."""

    kind: ClassVar[str] = "combine"
    expert_rows: Buffer  # f32 [rows * k, hidden]
    topk_weights: Buffer  # f32 [rows, k]
    out: Buffer  # f32 [rows, hidden]

    def run_float(self, at: Arrays) -> None:
        weights = at.live(self.topk_weights)
        at.live(self.out)[:] = np.einsum("rk,rkh->rh", weights, self._rows(at))

    def run_contract(self, at: Arrays) -> None:
        weights, rows = at.live(self.topk_weights), self._rows(at)
        out = np.zeros((len(weights), rows.shape[-1]), np.float32)
        for rank in range(weights.shape[1]):
            out = fma(weights[:, rank, None], rows[:, rank], out)
        at.live(self.out)[:] = out

    def _rows(self, at: Arrays) -> Float32:
        """[live rows, k, hidden]"""
        n, k = at.count(self.topk_weights), self.topk_weights.shape[1]
        found: Float32 = at[self.expert_rows][: n * k].reshape(n, k, -1)
        return found


@dataclass(frozen=True, eq=False)
class GatedAdd(Op):
    """out[r] = fma(sigmoid(gate[r]), y[r], x[r])."""

    kind: ClassVar[str] = "gated_add"
    x: Buffer  # [rows, width]
    y: Buffer  # [rows, width]
    gate: Buffer  # [rows, 1]
    out: Buffer  # [rows, width]

    def run_float(self, at: Arrays) -> None:
        with np.errstate(over="ignore"):
            gate = 1 / (1 + np.exp(-at.live(self.gate)))
        at.live(self.out)[:] = at.live(self.x) + gate * at.live(self.y)

    def run_contract(self, at: Arrays) -> None:
        at.live(self.out)[:] = fma(sigmoid32(at.live(self.gate)), at.live(self.y), at.live(self.x))


def combine(b: Builder, expert_rows: Buffer, topk_weights: Buffer) -> Buffer:
    """Rows [rows, hidden] from one row per (token, expert) [rows * k, hidden]."""
    rows, k = topk_weights.shape
    expect(
        expert_rows.shape[0] == rows * k,
        f"{expert_rows} does not hold {k} rows for each of {rows} tokens",
    )
    out = b.rows(expert_rows.shape[-1], "combined", like=topk_weights)
    b.emit(Combine(expert_rows, topk_weights, out))
    return out


def gated_add(b: Builder, x: Buffer, y: Buffer, gate: Buffer) -> Buffer:
    """x + sigmoid(gate) * y, gate one value a row."""
    same_shape(x, y)
    expect_width(gate, 1)
    out = b.rows(x.shape[-1], "gated", like=x)
    b.emit(GatedAdd(x, y, gate, out))
    return out
