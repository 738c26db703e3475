"""Output gates of mixers: a sigmoid after attention, and the gated norm after the delta rule."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import sigmoid32, silu32
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.head_norm import norm_contract, norm_float
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_shape, expect_width, same_shape


@dataclass(frozen=True, eq=False)
class SigmoidGate(Op):
    """out = x * sigmoid(gate); head h of the gate begins at h * stride + offset of its row."""

    kind: ClassVar[str] = "sigmoid_gate"
    x: Buffer  # [rows, heads * head_dim]
    gate: Buffer  # [rows, heads * stride]
    out: Buffer  # [rows, heads * head_dim]
    head_dim: int
    stride: int
    offset: int

    def _gate(self, at: Arrays) -> Any:
        gate = at.live(self.gate)
        heads = gate.reshape(len(gate), -1, self.stride)[..., self.offset : self.offset + self.head_dim]
        return heads.reshape(len(gate), -1)

    def run_float(self, at: Arrays) -> None:
        with np.errstate(over="ignore"):
            at.live(self.out)[:] = at.live(self.x) / (1 + np.exp(-self._gate(at)))

    def run_contract(self, at: Arrays) -> None:
        at.live(self.out)[:] = at.live(self.x) * sigmoid32(self._gate(at))


@dataclass(frozen=True, eq=False)
class GatedNorm(Op):
    """Every head of x normed, then times sigmoid(z), or silu(z) where `silu`."""

    kind: ClassVar[str] = "gated_norm"
    x: Buffer  # [rows, heads * head_dim]
    z: Buffer  # [rows, heads * head_dim]
    weight: Weight  # F32 [head_dim]
    out: Buffer
    silu: bool
    eps: float

    def run_float(self, at: Arrays) -> None:
        x, z = at.live(self.x), at.live(self.z)
        normed = norm_float(x.reshape(len(x), -1, self.weight.shape[-1]), self.weight.decode(), self.eps)
        with np.errstate(over="ignore"):
            gate = (z if self.silu else np.float32(1)) / (1 + np.exp(-z))
        at.live(self.out)[:] = normed.reshape(x.shape) * gate

    def run_contract(self, at: Arrays) -> None:
        x, z = at.live(self.x), at.live(self.z)
        normed = norm_contract(x.reshape(len(x), -1, self.weight.shape[-1]), self.weight.decode(), self.eps)
        at.live(self.out)[:] = normed.reshape(x.shape) * (silu32(z) if self.silu else sigmoid32(z))


def sigmoid_gate(b: Builder, x: Buffer, gate: Buffer, head_dim: int, stride: int, offset: int) -> Buffer:
    """x gated head by head; the gate may lie between other values of its buffer."""
    expect_width(gate, x.shape[-1] // head_dim * stride)
    out = b.rows(x.shape[-1], "gated", like=x)
    b.emit(SigmoidGate(x, gate, out, head_dim, stride, offset))
    return out


def gated_norm(b: Builder, x: Buffer, z: Buffer, weight: Weight, eps: float, silu: bool) -> Buffer:
    """Norm before the gate; `silu` chooses the gate's activation over sigmoid."""
    same_shape(x, z)
    expect_shape(weight, weight.shape[-1])
    expect(x.shape[-1] % weight.shape[-1] == 0, f"{x} is not whole heads of {weight.shape[-1]}")
    out = b.rows(x.shape[-1], "gated_norm", like=x)
    b.emit(GatedNorm(x, z, weight, out, silu, eps))
    return out
