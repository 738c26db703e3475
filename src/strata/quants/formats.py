"""The one table of block formats: decode to float32, and the integer view that the arithmetic contract uses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from strata.errors import UnsupportedError, UsageError
from strata.quants import iquants, kquants, legacy
from strata.quants.sizes import TENSOR_TYPES, TensorType
from strata.quants.unpack import Bytes, Unpack, Unpacked

GROUP = 32  # values that share one step of the contract's chain
_CHUNK = 1 << 20  # values decoded at once; bounds temporaries to some 20 MB


@dataclass(frozen=True)
class IntegerBlocks:
    """Rows as 32-value blocks, row-major; index 1 of [.., 2] is the half of 16. weight = codes * scales * d + mins * dmin.

    codes int8 [blocks, 32]; scales int32 [blocks, 2]; d float32 [blocks, 2]; mins int32 [blocks, 2] or None;
    dmin float32 [blocks] or None, its sign folded in.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.int32]
    d: NDArray[np.float32]
    mins: NDArray[np.int32] | None
    dmin: NDArray[np.float32] | None


def _decode_unpacked(blocks: Unpacked) -> NDArray[np.float32]:
    """float32 [n, values]; the order of operations is part of the format: (d scale) code, then + dmin min."""
    n, values = blocks.codes.shape
    scale = blocks.d * blocks.scales.astype(np.float32)
    x = scale[:, :, None] * blocks.codes.reshape(n, scale.shape[1], -1).astype(np.float32)
    if blocks.mins is not None and blocks.dmin is not None:
        x += (blocks.dmin * blocks.mins.astype(np.float32))[:, :, None]
    return x.reshape(n, values)


_Number = TypeVar("_Number", np.int32, np.float32)


def _two_per_group(numbers: NDArray[_Number], n: int, values: int) -> NDArray[_Number]:
    """Spreads [n or 1, per block 1, per 32 or per 16] numbers to [groups of 32, 2]."""
    spread = np.repeat(numbers, values // 16 // numbers.shape[1], axis=1)
    return np.broadcast_to(spread, (n, values // 16)).reshape(-1, 2).copy()


@dataclass(frozen=True)
class Format:
    """A block format. `halves`: an integer scale per 16 values; `scale16`: a float scale per 16 values."""

    type: TensorType
    unpack: Unpack | None = None
    to_float: Callable[[Bytes], NDArray[np.float32]] | None = None
    has_min: bool = False
    halves: bool = False
    scale16: bool = False

    @property
    def name(self) -> str:
        """GGML name, upper case."""
        return self.type.name

    @property
    def quantised(self) -> bool:
        """False for F32, F16 and BF16."""
        return self.unpack is not None

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k values; UsageError unless k is a positive number of whole blocks."""
        if k <= 0 or k % self.type.block_values:
            raise UsageError(f"{self.name}: a row of {k} values is not a multiple of {self.type.block_values}")
        return k // self.type.block_values * self.type.block_bytes

    def decode(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Bytes [..., row bytes] to float32 [..., k]; UsageError if a row is not whole blocks."""
        blocks = self._blocks(raw)
        values, step = self.type.block_values, _CHUNK // self.type.block_values
        out = np.empty((len(blocks), values), np.float32)
        for start in range(0, len(blocks), step):
            out[start : start + step] = self._decode_blocks(blocks[start : start + step])
        return out.reshape(*raw.shape[:-1], raw.shape[-1] // self.type.block_bytes * values)

    def integer_form(self, raw: NDArray[np.uint8], rows: int, k: int) -> IntegerBlocks:
        """The contract's view of rows x k values; UsageError on a wrong size, UnsupportedError for float formats."""
        if self.unpack is None:
            raise UnsupportedError(f"{self.name} has no integer form; only quantised formats do")
        if raw.size != rows * self.row_bytes(k):
            raise UsageError(f"{self.name}: {rows} x {k} values need {rows * self.row_bytes(k)} bytes, got {raw.size}")
        blocks = self.unpack(self._blocks(raw.reshape(-1)))
        n = len(blocks.codes)
        return IntegerBlocks(
            codes=np.ascontiguousarray(blocks.codes).reshape(-1, GROUP),
            scales=_two_per_group(blocks.scales, n, self.type.block_values),
            d=_two_per_group(blocks.d, n, self.type.block_values),
            mins=None if blocks.mins is None else _two_per_group(blocks.mins, n, self.type.block_values),
            dmin=None if blocks.dmin is None else _two_per_group(blocks.dmin, n, self.type.block_values)[:, 0].copy(),
        )

    def _blocks(self, raw: NDArray[np.uint8]) -> Bytes:
        size = self.type.block_bytes
        if raw.dtype != np.uint8 or raw.ndim == 0 or raw.shape[-1] % size:
            raise UsageError(f"{self.name}: {raw.dtype} {raw.shape} is not rows of whole {size}-byte blocks")
        return np.ascontiguousarray(raw).reshape(-1, size)

    def _decode_blocks(self, blocks: Bytes) -> NDArray[np.float32]:
        if self.unpack is not None:
            return _decode_unpacked(self.unpack(blocks))
        assert self.to_float is not None
        return self.to_float(blocks)


def _bf16(raw: Bytes) -> NDArray[np.float32]:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


_FORMATS = (
    Format(TENSOR_TYPES["F32"], to_float=lambda raw: raw.view("<f4")),
    Format(TENSOR_TYPES["F16"], to_float=lambda raw: raw.view("<f2").astype(np.float32)),
    Format(TENSOR_TYPES["BF16"], to_float=_bf16),
    Format(TENSOR_TYPES["Q4_0"], legacy.unpack_q4_0),
    Format(TENSOR_TYPES["Q4_1"], legacy.unpack_q4_1, has_min=True),
    Format(TENSOR_TYPES["Q5_0"], legacy.unpack_q5_0),
    Format(TENSOR_TYPES["Q5_1"], legacy.unpack_q5_1, has_min=True),
    Format(TENSOR_TYPES["Q8_0"], legacy.unpack_q8_0),
    Format(TENSOR_TYPES["Q2_K"], kquants.unpack_q2_k, has_min=True, halves=True),
    Format(TENSOR_TYPES["Q3_K"], kquants.unpack_q3_k, halves=True),
    Format(TENSOR_TYPES["Q4_K"], kquants.unpack_q4_k, has_min=True),
    Format(TENSOR_TYPES["Q5_K"], kquants.unpack_q5_k, has_min=True),
    Format(TENSOR_TYPES["Q6_K"], kquants.unpack_q6_k, halves=True),
    Format(TENSOR_TYPES["IQ1_S"], iquants.unpack_iq1_s),
    Format(TENSOR_TYPES["IQ1_M"], iquants.unpack_iq1_m, halves=True),
    Format(TENSOR_TYPES["IQ2_XXS"], iquants.unpack_iq2_xxs),
    Format(TENSOR_TYPES["IQ2_XS"], iquants.unpack_iq2_xs, halves=True),
    Format(TENSOR_TYPES["IQ2_S"], iquants.unpack_iq2_s, halves=True),
    Format(TENSOR_TYPES["IQ3_XXS"], iquants.unpack_iq3_xxs),
    Format(TENSOR_TYPES["IQ3_S"], iquants.unpack_iq3_s),
    Format(TENSOR_TYPES["IQ4_NL"], legacy.unpack_iq4_nl),
    Format(TENSOR_TYPES["IQ4_XS"], iquants.unpack_iq4_xs),
    Format(TENSOR_TYPES["TQ1_0"], legacy.unpack_tq1_0),
    Format(TENSOR_TYPES["TQ2_0"], legacy.unpack_tq2_0),
    Format(TENSOR_TYPES["MXFP4"], legacy.unpack_mxfp4),
    Format(TENSOR_TYPES["NVFP4"], legacy.unpack_nvfp4, scale16=True),
    Format(TENSOR_TYPES["Q2_0"], legacy.unpack_q2_0),
)

FORMATS: dict[str, Format] = {f.name: f for f in _FORMATS}
FORMATS_BY_ID: dict[int, Format] = {f.type.id: f for f in _FORMATS}
