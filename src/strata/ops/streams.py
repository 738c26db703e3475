"""Hyper-connections (Zhu et al. 2024): several residual streams, mixed before a sublayer, injected into after it.

A row of `streams` * width values holds its streams one after the other.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.arithmetic import fma, sigmoid32, silu32
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_width, same_shape


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


@dataclass(frozen=True, eq=False)
class StreamTile(Op):
    """Every stream starts as the same row."""

    kind: ClassVar[str] = "stream_tile"
    x: Buffer  # [rows, width]
    out: Buffer  # [rows, streams * width]
    streams: int

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = np.tile(at.live(self.x), (1, self.streams))


@dataclass(frozen=True, eq=False)
class ScaledSilu(Op):
    """out = silu(x / divisor)."""

    kind: ClassVar[str] = "scaled_silu"
    x: Buffer
    out: Buffer
    divisor: int

    def run_float(self, at: Arrays) -> None:
        x = at.live(self.x) / np.float32(self.divisor)
        at.live(self.out)[:] = x * _sigmoid(x)

    def run_contract(self, at: Arrays) -> None:
        at.live(self.out)[:] = silu32(at.live(self.x) / np.float32(self.divisor))


@dataclass(frozen=True, eq=False)
class StreamMix(Op):
    """out = mean over streams of sigmoid(gate) * x."""

    kind: ClassVar[str] = "stream_mix"
    x: Buffer  # [rows, streams * width]
    gate: Buffer  # [rows, streams * width]
    out: Buffer  # [rows, width]
    streams: int

    def run_float(self, at: Arrays) -> None:
        x = _sigmoid(at.live(self.gate)) * at.live(self.x)
        at.live(self.out)[:] = x.reshape(len(x), self.streams, x.shape[1] // self.streams).mean(axis=1)

    def run_contract(self, at: Arrays) -> None:
        out = at.live(self.out)
        shape = (len(out), self.streams, out.shape[1])
        x, gate = at.live(self.x).reshape(shape), sigmoid32(at.live(self.gate)).reshape(shape)
        total = np.zeros_like(out)
        for c in range(self.streams):
            total = fma(gate[:, c], x[:, c], total)
        out[:] = total / np.float32(self.streams)


@dataclass(frozen=True, eq=False)
class StreamWrite(Op):
    """Stream c of out = residual's + 2 sigmoid(inject[c] / streams) * y."""

    kind: ClassVar[str] = "stream_write"
    residual: Buffer  # [rows, streams * width]
    y: Buffer  # [rows, width]
    inject: Buffer  # [rows, streams]
    out: Buffer  # [rows, streams * width]

    def run_float(self, at: Arrays) -> None:
        weight = 2 * _sigmoid(at.live(self.inject) / np.float32(self.inject.shape[-1]))
        added = weight[:, :, None] * at.live(self.y)[:, None]
        at.live(self.out)[:] = at.live(self.residual) + added.reshape(len(added), -1)

    def run_contract(self, at: Arrays) -> None:
        out, streams = at.live(self.out), self.inject.shape[-1]
        weight = np.float32(2) * sigmoid32(at.live(self.inject) / np.float32(streams))
        residual = at.live(self.residual).reshape(len(out), streams, -1)
        out[:] = fma(weight[:, :, None], at.live(self.y)[:, None], residual).reshape(out.shape)


def stream_tile(b: Builder, x: Buffer, streams: int) -> Buffer:
    """[rows, streams * width] of x [rows, width]."""
    out = b.rows(x.shape[-1] * streams, "streams", like=x)
    b.emit(StreamTile(x, out, streams))
    return out


def scaled_silu(b: Builder, x: Buffer, divisor: int) -> Buffer:
    """silu(x / divisor), the shape of x."""
    out = b.rows(x.shape[-1], "silu", like=x)
    b.emit(ScaledSilu(x, out, divisor))
    return out


def stream_mix(b: Builder, x: Buffer, gate: Buffer, streams: int) -> Buffer:
    """The sublayer's input [rows, width] from normed streams and their gate's logits."""
    same_shape(x, gate)
    expect(x.shape[-1] % streams == 0, f"{x} is not {streams} streams")
    out = b.rows(x.shape[-1] // streams, "mixed", like=x)
    b.emit(StreamMix(x, gate, out, streams))
    return out


def stream_write(b: Builder, residual: Buffer, y: Buffer, inject: Buffer) -> Buffer:
    """The streams after a sublayer's output y [rows, width], each by its own weight, 0 to 2."""
    expect_width(residual, y.shape[-1] * inject.shape[-1])
    out = b.rows(residual.shape[-1], "streams", like=residual)
    b.emit(StreamWrite(residual, y, inject, out))
    return out
