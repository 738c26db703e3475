"""Random blocks of any type: bytes cut from a pool, then scales that give the values a wanted deviation."""

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from strata.errors import UnsupportedError, UsageError
from strata.gguf import TensorType
from strata.quants import FORMATS

Bytes = NDArray[np.uint8]
Piece = tuple[int, Bytes]

PIECE_BYTES = 1 << 22  # made at once: stays in a core's cache share, and bounds memory
POOL_BYTES = 1 << 26
FLOAT_PERIOD = 1 << 20  # values after which random floats repeat

# Deviation of a block's values for a scale of 1, rounded as the planted files have always had it.
_PLANTED_UNIT = {"Q8_0": 74.0, "IQ3_XXS": 100.0, "Q2_0": 1.2, "IQ4_NL": 65.0, "Q5_1": 9.0}
# Byte of the f16 scale; where there is a minimum too, its byte and its size in units of the scale, so that
# values centre on zero.
_SCALE_AT = {"Q2_K": 80, "Q3_K": 108, "TQ1_0": 52, "TQ2_0": 64}
_MINIMUM = {"Q4_1": (2, -7.5), "Q5_1": (2, -16.0), "Q2_K": (82, 1.5), "Q4_K": (2, 7.5), "Q5_K": (2, 15.5)}
_FLOATS = ("F32", "F16", "BF16")


class Pool:
    """One buffer of random bytes that every tensor is cut from, at an offset of its own."""

    def __init__(self, seed: int, nbytes: int = POOL_BYTES) -> None:
        self._bytes = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)

    def start(self, rng: np.random.Generator) -> int:
        """Where a tensor's bytes begin, in the first half."""
        return int(rng.integers(0, len(self._bytes) // 2))

    def cut(self, start: int, begin: int, end: int) -> Bytes:
        """Bytes begin to end of the stream that starts at `start` and goes round to 0 at the pool's end."""
        out = np.empty(end - begin, np.uint8)
        at, done = (start + begin) % len(self._bytes), 0
        while done < len(out):
            n = min(len(out) - done, len(self._bytes) - at)
            out[done : done + n] = self._bytes[at : at + n]
            done, at = done + n, 0
        return out


def random_pieces(
    pool: Pool,
    kind: TensorType,
    values: int,
    std: float,
    rng: np.random.Generator,
    begin: int = 0,
    end: int = 0,
) -> Iterator[Piece]:
    """`values` random values of deviation `std` as (offset, bytes); of blocks, begin to end (0: the last)."""
    if kind.name in _FLOATS:
        yield 0, random_floats(kind, values, std, rng)
        return
    size, start = kind.block_bytes, pool.start(rng)
    end, step = end or values // kind.block_values, PIECE_BYTES // size
    for first in range(begin, end, step):
        last = min(first + step, end)
        blocks = pool.cut(start, first * size, last * size).reshape(-1, size)
        set_scales(kind.name, blocks, std)
        yield first * size, blocks


def random_floats(kind: TensorType, values: int, std: float, rng: np.random.Generator) -> Bytes:
    """Normal values that repeat every FLOAT_PERIOD; BF16 by cutting bits off."""
    x = rng.standard_normal(min(values, FLOAT_PERIOD), dtype=np.float32) * np.float32(std)
    if kind == TensorType.BF16:
        x = (x.view(np.uint32) >> 16).astype(np.uint16)
    elif kind == TensorType.F16:
        x = x.astype(np.float16)
    return np.resize(x, values).view(np.uint8)


def set_scales(kind: str, blocks: Bytes, std: float) -> None:
    """Overwrite the scales of random blocks [n, block bytes]; UnsupportedError for types without a rule."""
    if kind == "Q6_K":
        blocks[:, 192:208] &= 63
        _put_half(blocks, 208, std / (32 * 18))
    elif kind == "Q4_K":
        _put_half(blocks, 0, std / 150)
        _put_half(blocks, 2, std / 40)
    elif kind in _PLANTED_UNIT:
        scale = std / _PLANTED_UNIT[kind]
        _put_half(blocks, 0, scale)
        if kind == "Q5_1":
            _put_half(blocks, 2, -16 * scale)
    else:
        _set_unit(kind, blocks, std / unit_deviation(kind))


def _set_unit(kind: str, blocks: Bytes, scale: float) -> None:
    if kind not in FORMATS or kind == "NVFP4":
        raise UnsupportedError(
            f"random {kind} blocks are not supported; {', '.join(FORMATS)} are, but not NVFP4"
        )
    if kind == "MXFP4":  # the scale is a power of two
        blocks[:, 0] = 127 + int(np.clip(np.round(np.log2(max(scale, 1e-30))), -100, 100))
    elif kind == "IQ1_M":  # the half's nibbles are spread over the top ones of four words
        half = int(np.float16(scale).view(np.uint16))
        for i in range(4):
            blocks[:, 49 + 2 * i] = (blocks[:, 49 + 2 * i] & 15) | ((half >> 4 * i & 15) << 4)
    else:
        _put_half(blocks, _SCALE_AT.get(kind, 0), scale)
        if kind in _MINIMUM:
            at, ratio = _MINIMUM[kind]
            _put_half(blocks, at, ratio * scale)


def _put_half(blocks: Bytes, at: int, value: float) -> None:
    blocks[:, at : at + 2] = np.array([value], np.float16).view(np.uint8)


@cache
def unit_deviation(kind: str) -> float:
    """Root mean square of random blocks whose scale is 1."""
    size = FORMATS[kind].block_bytes
    blocks = np.random.default_rng(0).integers(0, 256, (4096, size), dtype=np.uint8)
    _set_unit(kind, blocks, 1.0)
    return float(np.sqrt(np.mean(FORMATS[kind].decode(blocks).astype(np.float64) ** 2)))


def fitting_type(name: str, k: int) -> TensorType:
    """The type, or where rows of k values are not whole blocks, Q8_0 or F16; UsageError for an unknown name."""
    if name not in FORMATS:
        raise UsageError(f"type {name!r}; it must be one of {', '.join(FORMATS)}")
    for kind in (TensorType[name], TensorType.Q8_0, TensorType.F16):
        if k % kind.block_values == 0:
            return kind
    raise AssertionError("F16 blocks are single values")
