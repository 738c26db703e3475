"""The one table of block formats: decode, encode, and the integer view of the arithmetic contract."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from strata.errors import UnsupportedError, UsageError
from strata.gguf import TensorType
from strata.quants import encode, grid_search, iquants, kquants, legacy, search
from strata.quants.unpack import Bytes, Unpack, Unpacked

GROUP = 32  # values that share one step of the contract's chain
_DECODE_CHUNK = 1 << 20  # values at once; bounds temporaries to some 20 MB
_ENCODE_CHUNK = 1 << 16  # the searches run from the cache


@dataclass(frozen=True)
class IntegerBlocks:
    """Rows as 32-value blocks, row-major: weight = codes * scales * d (+ mins * dmin), exactly.

    The index in [blocks, 2] is the half of 16 values; only formats with `scale16` have two different d.
    """

    codes: NDArray[np.int8]  # [blocks, 32]
    scales: NDArray[np.int32]  # [blocks, 2]
    d: NDArray[np.float32]  # [blocks, 2]
    mins: NDArray[np.int32] | None  # [blocks, 2]
    dmin: NDArray[np.float32] | None  # [blocks], its sign folded in: the added term is + mins * dmin
    halves: bool  # an integer scale (and minimum) per 16: they stay in the integer sum
    scale16: bool  # the product takes one fma per half, each with its own d


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
    """A block format. `halves`: an integer scale per 16 values; `scale16`: a float scale per 16 values.

    `pack_weighed` is the encoder where errors of values can count unequally: blocks and weights, or None.
    """

    type: TensorType
    unpack: Unpack | None = None
    to_float: Callable[[Bytes], NDArray[np.float32]] | None = None
    pack: Callable[[NDArray[np.float32]], Bytes] | None = None
    pack_weighed: Callable[[NDArray[np.float32], NDArray[np.float32] | None], Bytes] | None = None
    has_min: bool = False
    halves: bool = False
    scale16: bool = False

    @property
    def name(self) -> str:
        """GGML name, upper case."""
        return self.type.name

    @property
    def type_id(self) -> int:
        """Id in a GGUF file, and of the native QuantType."""
        return self.type.value

    @property
    def block_values(self) -> int:
        """Values of a block (of a super-block, where the format has them)."""
        return self.type.block_values

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.type.block_bytes

    @property
    def quantised(self) -> bool:
        """False for F32, F16 and BF16."""
        return self.unpack is not None

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k values; UsageError unless k is a positive number of whole blocks."""
        if k <= 0 or k % self.block_values:
            raise UsageError(f"{self.name}: a row of {k} values is not whole blocks of {self.block_values}")
        return k // self.block_values * self.block_bytes

    def decode(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Bytes [..., row bytes] to float32 [..., k]; UsageError if a row is not whole blocks."""
        blocks = self._blocks(raw)
        values, step = self.block_values, _DECODE_CHUNK // self.block_values
        out = np.empty((len(blocks), values), np.float32)
        for start in range(0, len(blocks), step):
            with np.errstate(over="ignore", invalid="ignore"):  # infinite scales are the caller's to refuse
                out[start : start + step] = self._decode_blocks(blocks[start : start + step])
        return out.reshape(*raw.shape[:-1], raw.shape[-1] // self.block_bytes * values)

    @property
    def encodes(self) -> bool:
        """Whether there is an encoder."""
        return self.pack is not None or self.pack_weighed is not None

    def encode(self, x: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        """float32 [..., k] to bytes [..., row bytes]; UsageError on a partial block or a non-finite value.

        `weights`, >= 0 and spread to the shape of x: how much a squared error counts; formats without a search
        pay no heed to them.
        """
        if not self.encodes:
            names = ", ".join(f.name for f in _FORMATS if f.encodes)
            raise UnsupportedError(f"{self.name} has no encoder; there are {names}")
        row_bytes = self.row_bytes(x.shape[-1])
        bad = x.size - int(np.count_nonzero(np.isfinite(x)))
        if bad:
            raise UsageError(f"{self.name}: {bad} of {x.size} values to encode are not finite")
        blocks = np.ascontiguousarray(x, np.float32).reshape(-1, self.block_values)
        if weights is not None:
            weights = np.broadcast_to(weights.astype(np.float32), x.shape).reshape(blocks.shape)
        step = _ENCODE_CHUNK // self.block_values
        out = np.empty((len(blocks), self.block_bytes), np.uint8)
        for start in range(0, len(blocks), step):
            part = slice(start, start + step)
            out[part] = self._pack(blocks[part], None if weights is None else weights[part])
        return out.reshape(*x.shape[:-1], row_bytes)

    def _pack(self, blocks: NDArray[np.float32], weights: NDArray[np.float32] | None) -> Bytes:
        if self.pack_weighed is not None:
            return self.pack_weighed(blocks, weights)
        assert self.pack is not None
        return self.pack(blocks)

    def integer_form(self, raw: NDArray[np.uint8], rows: int, k: int) -> IntegerBlocks:
        """The contract's view of rows x k values, which must fill `raw`; only quantised formats have one."""
        if self.unpack is None:
            raise UnsupportedError(f"{self.name} has no integer form; only quantised formats do")
        needed = rows * self.row_bytes(k)
        if raw.size != needed:
            raise UsageError(f"{self.name}: {rows} rows of {k} values need {needed} bytes, got {raw.size}")
        codes, scales, d, mins, dmin = self.unpack(self._blocks(raw.reshape(-1)))
        blocks, values = codes.shape
        return IntegerBlocks(
            codes=np.ascontiguousarray(codes).reshape(-1, GROUP),
            scales=_two_per_group(scales, blocks, values),
            d=_two_per_group(d, blocks, values),
            mins=None if mins is None else _two_per_group(mins, blocks, values),
            dmin=None if dmin is None else _two_per_group(dmin, blocks, values)[:, 0].copy(),
            halves=self.halves,
            scale16=self.scale16,
        )

    def _blocks(self, raw: NDArray[np.uint8]) -> Bytes:
        size = self.block_bytes
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
    Format(TensorType.F32, to_float=lambda raw: raw.view("<f4"), pack=lambda x: x.view(np.uint8)),
    Format(TensorType.F16, to_float=lambda raw: raw.view("<f2").astype(np.float32), pack=encode.encode_f16),
    Format(TensorType.BF16, to_float=_bf16, pack=encode.encode_bf16),
    Format(TensorType.Q4_0, legacy.unpack_q4_0, pack=encode.encode_q4_0),
    Format(TensorType.Q4_1, legacy.unpack_q4_1, pack=encode.encode_q4_1, has_min=True),
    Format(TensorType.Q5_0, legacy.unpack_q5_0, pack=encode.encode_q5_0),
    Format(TensorType.Q5_1, legacy.unpack_q5_1, pack=encode.encode_q5_1, has_min=True),
    Format(TensorType.Q8_0, legacy.unpack_q8_0, pack=encode.encode_q8_0),
    Format(TensorType.Q2_K, kquants.unpack_q2_k, has_min=True, halves=True),
    Format(TensorType.Q3_K, kquants.unpack_q3_k, halves=True),
    Format(TensorType.Q4_K, kquants.unpack_q4_k, pack=search.encode_q4_k, has_min=True),
    Format(TensorType.Q5_K, kquants.unpack_q5_k, has_min=True),
    Format(TensorType.Q6_K, kquants.unpack_q6_k, pack=search.encode_q6_k, halves=True),
    Format(TensorType.IQ1_S, iquants.unpack_iq1_s),
    Format(TensorType.IQ1_M, iquants.unpack_iq1_m, halves=True),
    Format(TensorType.IQ2_XXS, iquants.unpack_iq2_xxs),
    Format(TensorType.IQ2_XS, iquants.unpack_iq2_xs, halves=True),
    Format(TensorType.IQ2_S, iquants.unpack_iq2_s, halves=True),
    Format(TensorType.IQ3_XXS, iquants.unpack_iq3_xxs, pack_weighed=grid_search.encode_iq3_xxs),
    Format(TensorType.IQ3_S, iquants.unpack_iq3_s),
    Format(TensorType.IQ4_NL, legacy.unpack_iq4_nl, pack_weighed=search.encode_iq4_nl),
    Format(TensorType.IQ4_XS, iquants.unpack_iq4_xs),
    Format(TensorType.TQ1_0, legacy.unpack_tq1_0),
    Format(TensorType.TQ2_0, legacy.unpack_tq2_0),
    Format(TensorType.MXFP4, legacy.unpack_mxfp4),
    Format(TensorType.NVFP4, legacy.unpack_nvfp4, scale16=True),
    Format(TensorType.Q2_0, legacy.unpack_q2_0, pack_weighed=search.encode_q2_0),
)

FORMATS: dict[str, Format] = {f.name: f for f in _FORMATS}
FORMATS_BY_ID: dict[int, Format] = {f.type_id: f for f in _FORMATS}
