"""What the delta rule takes: keys and queries of unit length, and per value head a step size and a log decay."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import lane_dot, sigmoid32, softplus32
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_shape, expect_width, same_shape

EPS = np.float32(1e-6)  # inside the root of the L2 norm (transformers)


@dataclass(frozen=True, eq=False)
class UnitHeads(Op):
    """The first `2 * heads` heads of a row, x / sqrt(sum x^2 + 1e-6); the first half (queries) also times `scale`."""

    kind: ClassVar[str] = "unit_heads"
    x: Buffer  # [rows, 2 * heads * head_dim or more]
    out: Buffer  # [rows, 2 * heads * head_dim]
    heads: int
    scale: float

    def _heads(self, at: Arrays) -> Any:
        x = at.live(self.x)[:, : self.out.shape[-1]]
        return np.ascontiguousarray(x).reshape(len(x), 2 * self.heads, -1)

    def run_float(self, at: Arrays) -> None:
        x, out = self._heads(at), at.live(self.out)
        unit = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + EPS)
        unit[:, : self.heads] *= np.float32(self.scale)
        out[:] = unit.reshape(out.shape)

    def run_contract(self, at: Arrays) -> None:
        x, out = self._heads(at), at.live(self.out)
        unit = x * (np.float32(1) / np.sqrt(lane_dot(x, x) + EPS))[..., None]
        unit[:, : self.heads] *= np.float32(self.scale)
        out[:] = unit.reshape(out.shape)


@dataclass(frozen=True, eq=False)
class DeltaGates(Op):
    """Per value head: beta = sigmoid(b) and g = rate * softplus(a + bias), g <= 0 being the log of the decay.

    `packed`: b and a are one buffer that holds, for each group of so many value heads, their b and then their a.
    """

    kind: ClassVar[str] = "delta_gates"
    b: Buffer
    a: Buffer
    rate: Weight  # F32 [heads], -exp(A)
    bias: Weight  # F32 [heads]
    out: Buffer  # [rows, 2 * heads]: beta of all heads, then g
    packed: int

    def _both(self, at: Arrays) -> tuple[Any, Any]:
        b, a = at.live(self.b), at.live(self.a)
        if self.packed:
            both = b.reshape(len(b), -1, 2, self.packed)
            b, a = (both[:, :, i].reshape(len(b), -1) for i in (0, 1))
        return b, a

    def run_float(self, at: Arrays) -> None:
        b, a = self._both(at)
        with np.errstate(over="ignore"):
            beta = 1 / (1 + np.exp(-b))
        g = self.rate.decode() * np.logaddexp(np.float32(0), a + self.bias.decode())
        at.live(self.out)[:] = np.concatenate([beta, g], axis=1)

    def run_contract(self, at: Arrays) -> None:
        b, a = self._both(at)
        g = self.rate.decode() * softplus32(a + self.bias.decode())
        at.live(self.out)[:] = np.concatenate([sigmoid32(b), g], axis=1)


def unit_heads(b: Builder, x: Buffer, heads: int, head_dim: int) -> Buffer:
    """Queries (scaled by head_dim^-1/2) and keys [rows, 2 * heads * head_dim] from the front of x."""
    expect(x.shape[-1] >= 2 * heads * head_dim, f"{x} does not hold {2 * heads} heads of {head_dim}")
    out = b.rows(2 * heads * head_dim, "unit_heads", like=x)
    b.emit(UnitHeads(x, out, heads, head_dim**-0.5))
    return out


def delta_gates(b: Builder, beta: Buffer, a: Buffer, rate: Weight, bias: Weight) -> Buffer:
    """beta and g [rows, 2 * heads] from two projections [rows, heads]."""
    same_shape(beta, a)
    return _emit_gates(b, beta, a, rate, bias, 0)


def packed_delta_gates(b: Builder, both: Buffer, group: int, rate: Weight, bias: Weight) -> Buffer:
    """The same from one projection, packed by groups of value heads."""
    expect_width(both, 2 * rate.shape[0])
    return _emit_gates(b, both, both, rate, bias, group)


def _emit_gates(b: Builder, beta: Buffer, a: Buffer, rate: Weight, bias: Weight, packed: int) -> Buffer:
    heads = rate.shape[0]
    expect_shape(rate, heads)
    expect_shape(bias, heads)
    expect_width(beta, 2 * heads if packed else heads)
    out = b.rows(2 * heads, "gates", like=beta)
    b.emit(DeltaGates(beta, a, rate, bias, out, packed))
    return out
