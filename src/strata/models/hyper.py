"""Hyper-connections of a sublayer: several residual streams, read through a gate and written by injection weights."""

from dataclasses import dataclass
from typing import Self

from strata.models.metadata import Metadata
from strata.models.weights import WeightReader
from strata.ops import (
    Buffer,
    Builder,
    Weight,
    grouped_norm,
    linear,
    scaled_silu,
    stream_mix,
    stream_write,
)


@dataclass(frozen=True)
class HyperConnection:
    """Weights around one sublayer; without `inject`, a mixer that only reads."""

    norm: Weight  # [streams * hidden]
    down: Weight  # [low_rank, streams * hidden]
    up: Weight  # [streams * hidden, low_rank]
    inject: Weight | None  # [streams, streams * hidden]
    streams: int
    eps: float

    @classmethod
    def load(cls, w: WeightReader, m: Metadata, prefix: str, hidden: int, *, inject: bool = True) -> Self:
        """The tensors `<prefix>norm`, `down`, `up` and, for a sublayer, `inject`."""
        streams = m.positive("hyper_connection.count")
        wide = streams * hidden
        down = w.get(prefix + "down.weight", -1, wide)
        return cls(
            norm=w.vector(prefix + "norm.weight", wide),
            down=down,
            up=w.get(prefix + "up.weight", wide, down.shape[0]),
            inject=w.get(prefix + "inject.weight", streams, wide) if inject else None,
            streams=streams,
            eps=m.real("attention.layer_norm_rms_epsilon"),
        )

    def mix(self, b: Builder, residual: Buffer) -> Buffer:
        """[rows, hidden] of the streams [rows, streams * hidden]."""
        return self._mix(b, grouped_norm(b, residual, self.norm, self.streams, self.eps))

    def read(self, b: Builder, residual: Buffer) -> tuple[Buffer, Buffer]:
        """The sublayer's input [rows, hidden], and the logits [rows, streams] by which its output is injected."""
        assert self.inject is not None
        normed = grouped_norm(b, residual, self.norm, self.streams, self.eps)
        return self._mix(b, normed), linear(b, normed, self.inject)

    def write(self, b: Builder, residual: Buffer, y: Buffer, inject: Buffer) -> Buffer:
        """The streams after the sublayer's output y."""
        return stream_write(b, residual, y, inject)

    def _mix(self, b: Builder, normed: Buffer) -> Buffer:
        low = scaled_silu(b, linear(b, normed, self.down), self.streams)
        return stream_mix(b, normed, linear(b, low, self.up), self.streams)
