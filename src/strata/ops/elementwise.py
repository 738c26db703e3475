"""Element-wise ops: residual addition, bias, SwiGLU's product."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strata.ops.arithmetic import gelu32, silu32
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect_shape, same_shape


@dataclass(frozen=True, eq=False)
class Add(Op):
    """out = a + b."""

    kind: ClassVar[str] = "add"
    a: Buffer
    b: Buffer
    out: Buffer

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = at.live(self.a) + at.live(self.b)


@dataclass(frozen=True, eq=False)
class AddBias(Op):
    """out = x + bias."""

    kind: ClassVar[str] = "add_bias"
    x: Buffer  # [rows, width]
    bias: Weight  # F32 [width]
    out: Buffer

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = at.live(self.x) + self.bias.decode()


@dataclass(frozen=True, eq=False)
class SiluMul(Op):
    """out = silu(gate) * up (SwiGLU, Shazeer 2020)."""

    kind: ClassVar[str] = "silu_mul"
    gate: Buffer
    up: Buffer
    out: Buffer

    def run_float(self, at: Arrays) -> None:
        gate = at.live(self.gate)
        with np.errstate(over="ignore"):
            at.live(self.out)[:] = gate / (1 + np.exp(-gate)) * at.live(self.up)

    def run_contract(self, at: Arrays) -> None:
        at.live(self.out)[:] = silu32(at.live(self.gate)) * at.live(self.up)


@dataclass(frozen=True, eq=False)
class GeluMul(Op):
    """out = gelu(gate) * up, gelu by its tanh form (Hendrycks and Gimpel 2016): x * sigmoid(2 c (x + 0.044715 x^3))."""

    kind: ClassVar[str] = "gelu_mul"
    gate: Buffer
    up: Buffer
    out: Buffer

    def run_float(self, at: Arrays) -> None:
        gate = at.live(self.gate)
        inner = np.sqrt(np.float32(2 / np.pi)) * (gate + np.float32(0.044715) * gate**3)
        at.live(self.out)[:] = np.float32(0.5) * gate * (1 + np.tanh(inner)) * at.live(self.up)

    def run_contract(self, at: Arrays) -> None:
        at.live(self.out)[:] = gelu32(at.live(self.gate)) * at.live(self.up)


@dataclass(frozen=True, eq=False)
class Scale(Op):
    """out = x * factor."""

    kind: ClassVar[str] = "scale"
    x: Buffer
    out: Buffer
    factor: float

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = at.live(self.x) * np.float32(self.factor)


def add(b: Builder, x: Buffer, y: Buffer) -> Buffer:
    """x + y, one shape."""
    same_shape(x, y)
    out = b.rows(x.shape[-1], "sum", like=x)
    b.emit(Add(x, y, out))
    return out


def add_bias(b: Builder, x: Buffer, bias: Weight | None) -> Buffer:
    """x plus a bias row; x itself where the model has none."""
    if bias is None:
        return x
    expect_shape(bias, x.shape[-1])
    out = b.rows(x.shape[-1], "biased", like=x)
    b.emit(AddBias(x, bias, out))
    return out


def silu_mul(b: Builder, gate: Buffer, up: Buffer) -> Buffer:
    """silu(gate) * up."""
    same_shape(gate, up)
    out = b.rows(gate.shape[-1], "swiglu", like=gate)
    b.emit(SiluMul(gate, up, out))
    return out


def gelu_mul(b: Builder, gate: Buffer, up: Buffer) -> Buffer:
    """gelu(gate) * up, tanh form."""
    same_shape(gate, up)
    out = b.rows(gate.shape[-1], "geglu", like=gate)
    b.emit(GeluMul(gate, up, out))
    return out


def scale(b: Builder, x: Buffer, factor: float) -> Buffer:
    """x * factor, rounded to float32."""
    out = b.rows(x.shape[-1], "scaled", like=x)
    b.emit(Scale(x, out, factor))
    return out
