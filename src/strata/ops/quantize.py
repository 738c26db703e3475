"""quantize: activations to int8 blocks of 32 with one float32 scale (docs/contract.md)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.errors import FaultError
from strata.ops.arithmetic import BLOCK
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Q8, Arrays, Op
from strata.ops.shapes import expect

_ZERO_BELOW = np.float32(1e-30)  # keeps 127 / amax finite


@dataclass(frozen=True, eq=False)
class Quantize(Op):
    """Per block: scale = amax / 127, code = rint(x * (127 / amax)), and sums of codes per 16. Float mode copies."""

    kind: ClassVar[str] = "quantize"
    x: Buffer  # f32 [rows, k]
    out: Buffer  # q8 [rows, k]

    def run_float(self, at: Arrays) -> None:
        at.live(self.out)[:] = at.live(self.x)

    def run_contract(self, at: Arrays) -> None:
        out = at.live(self.out)
        out.codes[:], out.scales[:], out.sums[:] = quantize_rows(at.live(self.x))


def quantize_rows(x: NDArray[np.float32]) -> Q8:
    """The three planes of rows [n, k]; a non-finite value is a fault."""
    rows, k = x.shape
    blocks = x.reshape(rows, k // BLOCK, BLOCK)
    amax = np.abs(blocks).max(axis=-1)
    if not np.isfinite(amax).all():
        raise FaultError(
            f"non-finite activation in row {int(np.argwhere(~np.isfinite(amax))[0, 0])} of {rows}"
        )
    zero = amax < _ZERO_BELOW
    safe = np.where(zero, np.float32(1), amax)
    scales = np.where(zero, np.float32(0), safe / np.float32(127))
    inverse = np.where(zero, np.float32(0), np.float32(127) / safe)
    codes = np.rint(blocks * inverse[..., None]).astype(np.int8).reshape(rows, k)
    sums = codes.reshape(rows, k // 16, 16).sum(axis=-1, dtype=np.int16)
    return Q8(codes, scales, sums)


def quantized(b: Builder, x: Buffer) -> Buffer:
    """The q8 form of x [rows, k], made once for all products that read x."""
    k = x.shape[-1]
    expect(k % BLOCK == 0, f"{x.name} has {k} values a row; quantised products need a multiple of {BLOCK}")
    known = b.derived(x, "q8")
    if known is not None:
        return known
    out = b.rows(k, "q8", like=x, dtype="q8")
    b.emit(Quantize(x, out))
    return b.remember(x, "q8", out)
