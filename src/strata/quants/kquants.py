"""Unpacking of the K-quants: 256 values a super-block, integer scales inside."""

import numpy as np
from numpy.typing import NDArray

from strata.quants.unpack import Bytes, Unpacked, fields, halves, per_half, signed


def unpack_q2_k(raw: Bytes) -> Unpacked:
    """16 bytes of 4-bit scale and min per 16; 2-bit codes; f16 d, dmin: x = d s q - dmin m."""
    scales, mins = (raw[:, :16] & 15).astype(np.int32), (raw[:, :16] >> 4).astype(np.int32)
    return Unpacked(signed(fields(raw[:, 16:80], 32, 2), 0), scales, halves(raw, 80), mins, -halves(raw, 82))


def unpack_q3_k(raw: Bytes) -> Unpacked:
    """Third bits; low 2 bits; 16 6-bit scales less 32; f16 d. A clear third bit means less 4."""
    codes = fields(raw[:, 32:96], 32, 2) | (fields(raw[:, :32], 32, 1) << 2)
    scales = fields(raw[:, 96:104], 8, 4) | (fields(raw[:, 104:108], 4, 2) << 4)
    return Unpacked(signed(codes, 4), scales.astype(np.int32) - 32, halves(raw, 108))


def _scales_and_mins(packed: Bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """8 6-bit scales and 8 6-bit mins from 12 bytes: four of each whole, four more from leftover bits."""
    a, b, c = (packed[:, i : i + 4].astype(np.int32) for i in (0, 4, 8))
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1)
    mins = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1)
    return per_half(scales), per_half(mins)


def unpack_q4_k(raw: Bytes) -> Unpacked:
    """f16 d, dmin; 12 bytes of scales and mins per 32; nibbles: x = d s q - dmin m."""
    scales, mins = _scales_and_mins(raw[:, 4:16])
    return Unpacked(signed(fields(raw[:, 16:], 32, 4), 0), scales, halves(raw, 0), mins, -halves(raw, 2))


def unpack_q5_k(raw: Bytes) -> Unpacked:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles."""
    scales, mins = _scales_and_mins(raw[:, 4:16])
    codes = fields(raw[:, 48:], 32, 4) | (fields(raw[:, 16:48], 32, 1) << 4)
    return Unpacked(signed(codes, 0), scales, halves(raw, 0), mins, -halves(raw, 2))


def unpack_q6_k(raw: Bytes) -> Unpacked:
    """Low nibbles, high 2 bits, 16 int8 scales, f16 d: x = d s (q - 32)."""
    codes = fields(raw[:, :128], 64, 4) | (fields(raw[:, 128:192], 32, 2) << 4)
    return Unpacked(signed(codes, 32), raw[:, 192:208].view(np.int8).astype(np.int32), halves(raw, 208))
