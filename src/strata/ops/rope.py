"""rope: rotary position embedding from tables made once on the host in float64 (Su et al. 2021)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.ops.arithmetic import Float32, fma
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect

Blend = Callable[[Float32, Float32, Float32, Float32], Float32]  # a * c + b * s

_POSITIONS = 4096  # of the table made at a time, to bound the float64 memory


class RopeStyle(IntEnum):
    """Which dimensions rotate together."""

    ADJACENT = 0  # (2i, 2i + 1): GGUF llama files, whose q and k rows are permuted for it
    HALVES = 1  # (i, i + rotary_dim / 2): the Qwen family


@dataclass(frozen=True, eq=False)
class Rope(Op):
    """Rotates the first `rotary_dim` values of every head by the row's position; the rest pass."""

    kind: ClassVar[str] = "rope"
    positions: Buffer  # i32 [rows]
    table: Buffer  # f32 [max_positions, rotary_dim / 2, 2]: cos, sin
    x: Buffer  # [rows, heads * head_dim]
    out: Buffer
    head_dim: int
    style: RopeStyle

    @property
    def rotary_dim(self) -> int:
        """Values a head rotates."""
        return 2 * self.table.shape[1]

    def run_float(self, at: Arrays) -> None:
        self._rotate(at, lambda a, c, b, s: a * c + b * s)

    def run_contract(self, at: Arrays) -> None:
        self._rotate(at, lambda a, c, b, s: fma(a, c, b * s))

    def _rotate(self, at: Arrays, blend: Blend) -> None:
        x, n = at.live(self.x), at.count(self.x)
        heads = x.reshape(n, -1, self.head_dim)
        angle = at[self.table][at[self.positions][:n]][:, None]
        cos, sin = angle[..., 0], angle[..., 1]
        first, second = self._pairs()
        out = heads.copy()
        a, b = heads[..., first], heads[..., second]
        out[..., first] = blend(a, cos, -b, sin)
        out[..., second] = blend(b, cos, a, sin)
        at.live(self.out)[:] = out.reshape(n, -1)

    def _pairs(self) -> tuple[slice, slice]:
        r = self.rotary_dim
        if self.style is RopeStyle.ADJACENT:
            return slice(0, r, 2), slice(1, r, 2)
        return slice(0, r // 2), slice(r // 2, r)


def rope(b: Builder, x: Buffer, table: Buffer, head_dim: int, style: RopeStyle) -> Buffer:
    """x [rows, heads * head_dim], rotated by the step's positions."""
    rotary = 2 * table.shape[1]
    expect(rotary <= head_dim, f"rope rotates {rotary} values of heads that have {head_dim}")
    expect(x.shape[-1] % head_dim == 0, f"{x} is not a whole number of heads of {head_dim}")
    out = b.rows(x.shape[-1], "rope", like=x)
    b.emit(Rope(b.steps.positions, table, x, out, head_dim, style))
    return out


@dataclass(frozen=True)
class RopeScaling:
    """How positions past the trained context are treated."""

    kind: str = "none"  # none, linear, yarn; llama3 arrives as `factors`
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: NDArray[np.float32] | None = None  # [rotary_dim / 2] divisors of the frequencies


def rope_table(max_positions: int, rotary_dim: int, theta: float, scaling: RopeScaling) -> Buffer:
    """A constant f32 [max_positions, rotary_dim / 2, 2] of cos and sin."""
    frequencies, magnitude = rope_frequencies(rotary_dim, theta, scaling)
    table = np.empty((max_positions, len(frequencies), 2), np.float32)
    for i in range(0, max_positions, _POSITIONS):
        part = table[i : i + _POSITIONS]
        angles = np.arange(i, i + len(part), dtype=np.float64)[:, None] * frequencies
        part[..., 0], part[..., 1] = np.cos(angles) * magnitude, np.sin(angles) * magnitude
    return Buffer("rope_table", table.shape, "f32", "constant", data=table)


def rope_frequencies(
    rotary_dim: int, theta: float, scaling: RopeScaling
) -> tuple[NDArray[np.float64], float]:
    """Angle per position of each pair, and the factor on cos and sin."""
    frequencies = theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if scaling.factors is not None:
        frequencies = frequencies / scaling.factors.astype(np.float64)
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "yarn":
        return _yarn(frequencies, rotary_dim, theta, scaling)
    return frequencies, 1.0


def _yarn(
    frequencies: NDArray[np.float64], rotary_dim: int, theta: float, s: RopeScaling
) -> tuple[NDArray[np.float64], float]:
    """NTK-by-parts with the attention temperature of YaRN (Peng et al. 2023, sections 3.2 and 3.4)."""

    def dimension(rotations: float) -> float:
        return rotary_dim * math.log(s.original_context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(s.beta_fast)), 0)
    high = min(math.ceil(dimension(s.beta_slow)), rotary_dim - 1)
    ramp = np.clip((np.arange(rotary_dim // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    blended = frequencies / s.factor * ramp + frequencies * (1 - ramp)
    return blended, s.attention_factor * (1.0 + 0.1 * math.log(s.factor))
