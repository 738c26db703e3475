"""What every unpacking shares: the integer view of a run of blocks, and bit fields."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Unpacked(NamedTuple):
    """Blocks [n] as integers: weight = codes * scales * d (+ mins * dmin), exactly.

    codes int8 [n, values]; scales and mins int32 [n, per 16 values or broadcastable]; d float32 likewise;
    dmin float32 [n, 1], its sign folded in.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.int32]
    d: NDArray[np.float32]
    mins: NDArray[np.int32] | None = None
    dmin: NDArray[np.float32] | None = None


Unpack = Callable[[Bytes], Unpacked]

ONE = np.ones((1, 1), np.int32)


def fields(packed: Bytes, group: int, bits: int) -> Bytes:
    """Bit fields of bytes [n, m]: of each run of `group` bytes first all lowest fields, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = packed.reshape(len(packed), -1, 1, group) >> shifts
    return (parts & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def pack_fields(codes: Bytes, group: int, bits: int) -> Bytes:
    """The inverse of `fields`: codes [n, m] that fit `bits` bits, to bytes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = codes.reshape(len(codes), -1, 8 // bits, group) << shifts
    packed: Bytes = np.bitwise_or.reduce(parts, axis=2)
    return packed.reshape(len(codes), -1)


def bits(packed: Bytes) -> Bytes:
    """Bits of bytes [n, m] as [n, 8 m], lowest first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def halves(raw: Bytes, at: int) -> NDArray[np.float32]:
    """The half at byte `at` of every block, as float32 [n, 1]."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view("<f2").astype(np.float32)


def words16(raw: Bytes) -> NDArray[np.int32]:
    """Bytes [n, 2 m] as little-endian 16-bit words, int32 [n, m]."""
    return np.ascontiguousarray(raw).view("<u2").astype(np.int32)


def words32(raw: Bytes) -> NDArray[np.int64]:
    """Bytes [n, 4 m] as little-endian 32-bit words, int64 [n, m]."""
    return np.ascontiguousarray(raw).view("<u4").astype(np.int64)


def per_half(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """One number per 32 values [n, m] as one per 16, [n, 2 m]."""
    return np.repeat(values, 2, axis=1)


def signed(codes: NDArray[Any], offset: int) -> NDArray[np.int8]:
    """Small unsigned codes minus an offset, as int8."""
    return codes.astype(np.int8) - np.int8(offset)
