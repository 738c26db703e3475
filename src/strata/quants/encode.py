"""Encoders with one pass: float32 blocks [n, values] to bytes [n, block bytes].

Scales, roundings and ties are those of ggml's reference quantisers, so that files come out the same.
"""

import numpy as np
from numpy.typing import NDArray

from strata.errors import UsageError
from strata.quants.unpack import Bytes, pack_fields

Floats = NDArray[np.float32]


def half_bytes(numbers: Floats) -> Bytes:
    """Numbers [n, 1] as little-endian halves [n, 2]; UsageError if one does not fit."""
    with np.errstate(over="ignore"):
        half = numbers.astype("<f2")
    if not np.isfinite(half).all():
        worst = numbers[~np.isfinite(half)][0]
        raise UsageError(f"a block needs a scale of {worst:g}, but half-precision scales end at 65504")
    return half.view(np.uint8)


def inverse(numbers: Floats) -> Floats:
    """1 / x, and 0 for numbers whose inverse is not finite."""
    with np.errstate(divide="ignore", over="ignore"):
        inverted = np.float32(1) / numbers
    return np.where(np.isfinite(inverted), inverted, np.float32(0))


def encode_bf16(x: Floats) -> Bytes:
    """Nearest, ties to even."""
    u = x.view(np.uint32)
    return ((u + (0x7FFF + ((u >> 16) & 1))) >> 16).astype("<u2").view(np.uint8)


def encode_f16(x: Floats) -> Bytes:
    """Nearest, ties to even; UsageError beyond 65504."""
    return half_bytes(x)


def encode_q8_0(x: Floats) -> Bytes:
    """d = amax / 127; nearest code, ties away from zero."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * inverse(d)
    size = np.abs(scaled)
    whole = np.floor(size)
    codes = np.copysign(whole + (size - whole >= 0.5), scaled).astype(np.int8)
    return np.hstack([half_bytes(d), codes.view(np.uint8)])


def _symmetric(x: Floats, levels: int) -> tuple[Floats, Bytes]:
    """The value of largest size becomes code 0: d [n, 1] and codes with offset levels / 2."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = peak / np.float32(-(levels // 2))
    codes = (x * inverse(d) + np.float32(levels // 2 + 0.5)).astype(np.uint8)
    return d, np.minimum(codes, np.uint8(levels - 1))


def _affine(x: Floats, levels: int) -> tuple[Floats, Floats, Bytes]:
    """Smallest value to code 0, largest to the last code: d and m [n, 1], codes."""
    m = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - m) / np.float32(levels - 1)
    codes = ((x - m) * inverse(d) + np.float32(0.5)).astype(np.uint8)
    return d, m, np.minimum(codes, np.uint8(levels - 1))


def _five_bits(codes: Bytes) -> list[Bytes]:
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    return [high, pack_fields(codes & np.uint8(15), 16, 4)]


def encode_q4_0(x: Floats) -> Bytes:
    """x = d (q - 8)."""
    d, codes = _symmetric(x, 16)
    return np.hstack([half_bytes(d), pack_fields(codes, 16, 4)])


def encode_q4_1(x: Floats) -> Bytes:
    """x = d q + m."""
    d, m, codes = _affine(x, 16)
    return np.hstack([half_bytes(d), half_bytes(m), pack_fields(codes, 16, 4)])


def encode_q5_0(x: Floats) -> Bytes:
    """x = d (q - 16)."""
    d, codes = _symmetric(x, 32)
    return np.hstack([half_bytes(d), *_five_bits(codes)])


def encode_q5_1(x: Floats) -> Bytes:
    """x = d q + m."""
    d, m, codes = _affine(x, 32)
    return np.hstack([half_bytes(d), half_bytes(m), *_five_bits(codes)])
