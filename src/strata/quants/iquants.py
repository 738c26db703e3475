"""Unpacking of the I-quants: 256 values a super-block, codes from grids."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.quants.tables import IQ4_VALUES, SIGN_BYTES, grid
from strata.quants.unpack import Bytes, Unpacked, bits, fields, halves, per_half, signed, words16, words32


def _grid_codes(name: str, index: NDArray[Any], sign_bytes: Bytes) -> NDArray[np.int8]:
    """Grid rows by index [n, m] with signs from bytes (bit set: minus), int8 [n, 256]."""
    sign = np.int8(1) - np.int8(2) * bits(sign_bytes).astype(np.int8)
    codes: NDArray[np.int8] = grid(name)[index].reshape(len(index), -1) * sign
    return codes


def _odd(scales: NDArray[Any]) -> NDArray[np.int32]:
    return scales.astype(np.int32) * 2 + 1


def _seven_bit_signs(words: NDArray[np.int64]) -> Bytes:
    """Four 7-bit sign indices in the low 28 bits of each word [n, m], as sign bytes [n, 4 m]."""
    index = (words[:, :, None] >> np.array([0, 7, 14, 21])) & 127
    signs: Bytes = SIGN_BYTES[index.reshape(len(words), -1)]
    return signs


def unpack_iq2_xxs(raw: Bytes) -> Unpacked:
    """f16 d; per 32 values 4 grid bytes, then 4 x 7 sign bits and a 4-bit scale: x = d (0.5 + s) / 4 g."""
    groups = raw[:, 2:].reshape(len(raw), 8, 8)
    words = words32(groups[:, :, 4:].reshape(len(raw), -1))
    codes = _grid_codes("IQ2_XXS", groups[:, :, :4].reshape(len(raw), -1), _seven_bit_signs(words))
    return Unpacked(codes, per_half(_odd(words >> 28)), halves(raw, 0) * np.float32(0.125))


def unpack_iq2_xs(raw: Bytes) -> Unpacked:
    """f16 d; 32 words of 9-bit grid index and 7 sign bits; 4-bit scales per 16: x = d (0.5 + s) / 4 g."""
    words = words16(raw[:, 2:66])
    codes = _grid_codes("IQ2_XS", words & 511, SIGN_BYTES[words >> 9])
    return Unpacked(codes, _odd(fields(raw[:, 66:], 1, 4)), halves(raw, 0) * np.float32(0.125))


def unpack_iq2_s(raw: Bytes) -> Unpacked:
    """f16 d; low grid bytes; signs; high 2 bits; 4-bit scales per 16: x = d (0.5 + s) / 4 g."""
    index = raw[:, 2:34] | (fields(raw[:, 66:74], 1, 2).astype(np.uint16) << 8)
    codes = _grid_codes("IQ2_S", index, raw[:, 34:66])
    return Unpacked(codes, _odd(fields(raw[:, 74:], 1, 4)), halves(raw, 0) * np.float32(0.125))


def unpack_iq3_xxs(raw: Bytes) -> Unpacked:
    """f16 d; 64 grid bytes; per 32 values 4 x 7 sign bits and a 4-bit scale: x = d (0.5 + s) / 2 g."""
    words = words32(raw[:, 66:])
    codes = _grid_codes("IQ3_XXS", raw[:, 2:66], _seven_bit_signs(words))
    return Unpacked(codes, per_half(_odd(words >> 28)), halves(raw, 0) * np.float32(0.25))


def unpack_iq3_s(raw: Bytes) -> Unpacked:
    """f16 d; 64 low grid bytes; ninth bits; signs; 4-bit scales per 32: x = d (1 + 2 s) g."""
    index = raw[:, 2:66] | (bits(raw[:, 66:74]).astype(np.uint16) << 8)
    codes = _grid_codes("IQ3_S", index, raw[:, 74:106])
    return Unpacked(codes, per_half(_odd(fields(raw[:, 106:], 1, 4))), halves(raw, 0))


def _ternary_codes(index: NDArray[Any], minus: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Eight times (grid value +/- 1/8), for index and sign [n, 32], int8 [n, 256]."""
    shift = np.where(minus, np.int8(-1), np.int8(1))[:, :, None]
    codes: NDArray[np.int8] = grid("IQ1_S")[index] * np.int8(8) + shift
    return codes.reshape(len(index), -1)


def unpack_iq1_s(raw: Bytes) -> Unpacked:
    """f16 d; low grid bytes; per 32: 4 x 3 high bits, 3-bit scale, sign: x = d (2 s + 1) (g +/- 1/8)."""
    words = words16(raw[:, 34:])
    high = (words[:, :, None] >> np.array([0, 3, 6, 9])) & 7
    index = raw[:, 2:34] | (high.reshape(len(raw), -1) << 8)
    codes = _ternary_codes(index, np.repeat(words >= 0x8000, 4, axis=1))
    return Unpacked(codes, per_half(_odd((words >> 12) & 7)), halves(raw, 0) * np.float32(0.125))


def unpack_iq1_m(raw: Bytes) -> Unpacked:
    """Low grid bytes; nibbles of 3 high bits and a sign; 3-bit scales per 16, d in their four top nibbles."""
    nibbles = fields(raw[:, 32:48], 1, 4)
    codes = _ternary_codes(raw[:, :32] | ((nibbles & 7).astype(np.uint16) << 8), nibbles >= 8)
    words = words16(raw[:, 48:])
    d_bits = (words >> 12 << np.array([0, 4, 8, 12])).sum(axis=1, keepdims=True).astype(np.uint16)
    scales = (words[:, :, None] >> np.array([0, 3, 6, 9])) & 7
    return Unpacked(
        codes,
        _odd(scales.reshape(len(raw), -1)),
        d_bits.view(np.float16).astype(np.float32) * np.float32(0.125),
    )


def unpack_iq4_xs(raw: Bytes) -> Unpacked:
    """f16 d; high 2 and low 4 bits of scales per 32, less 32; nibbles into the IQ4 table: x = d s t."""
    scales = fields(raw[:, 4:8], 1, 4) | (fields(raw[:, 2:4], 1, 2) << 4)
    codes = IQ4_VALUES[fields(raw[:, 8:], 16, 4)]
    return Unpacked(codes, per_half(signed(scales, 32).astype(np.int32)), halves(raw, 0))
