"""Unpacking of the formats with 32 or 64 values a block, and of the ternary ones."""

import numpy as np

from strata.quants.tables import E2M1_DOUBLED, E8M0_HALVED, IQ4_VALUES, POWERS_OF_3, UE4M3_HALVED
from strata.quants.unpack import ONE, Bytes, Unpacked, bits, fields, halves, signed


def unpack_q4_0(raw: Bytes) -> Unpacked:
    """f16 d; 16 bytes of nibbles: x = d (q - 8)."""
    return Unpacked(signed(fields(raw[:, 2:], 16, 4), 8), ONE, halves(raw, 0))


def unpack_q4_1(raw: Bytes) -> Unpacked:
    """f16 d, m; nibbles: x = d q + m."""
    return Unpacked(signed(fields(raw[:, 4:], 16, 4), 0), ONE, halves(raw, 0), ONE, halves(raw, 2))


def _five_bits(raw: Bytes, at: int) -> Bytes:
    return fields(raw[:, at + 4 :], 16, 4) | (bits(raw[:, at : at + 4]) << np.uint8(4))


def unpack_q5_0(raw: Bytes) -> Unpacked:
    """f16 d; u32 fifth bits; nibbles: x = d (q - 16)."""
    return Unpacked(signed(_five_bits(raw, 2), 16), ONE, halves(raw, 0))


def unpack_q5_1(raw: Bytes) -> Unpacked:
    """f16 d, m; u32 fifth bits; nibbles: x = d q + m."""
    return Unpacked(signed(_five_bits(raw, 4), 0), ONE, halves(raw, 0), ONE, halves(raw, 2))


def unpack_q8_0(raw: Bytes) -> Unpacked:
    """f16 d; 32 int8: x = d q."""
    return Unpacked(raw[:, 2:].view(np.int8), ONE, halves(raw, 0))


def unpack_q2_0(raw: Bytes) -> Unpacked:
    """f16 d; value j in byte j / 4, bits 2 (j mod 4): x = d (q - 1)."""
    return Unpacked(signed(fields(raw[:, 2:], 1, 2), 1), ONE, halves(raw, 0))


def unpack_iq4_nl(raw: Bytes) -> Unpacked:
    """f16 d; nibbles into the IQ4 table."""
    return Unpacked(IQ4_VALUES[fields(raw[:, 2:], 16, 4)], ONE, halves(raw, 0))


def unpack_mxfp4(raw: Bytes) -> Unpacked:
    """E8M0 scale; nibbles of E2M1. The table is doubled, so the scale is halved."""
    return Unpacked(E2M1_DOUBLED[fields(raw[:, 1:], 16, 4)], ONE, E8M0_HALVED[raw[:, :1]])


def unpack_nvfp4(raw: Bytes) -> Unpacked:
    """Four UE4M3 scales, one per 16 values; per 16 values 8 bytes of E2M1 nibbles, low nibbles first."""
    return Unpacked(E2M1_DOUBLED[fields(raw[:, 4:], 8, 4)], ONE, UE4M3_HALVED[raw[:, :4]])


def unpack_tq2_0(raw: Bytes) -> Unpacked:
    """2-bit codes, f16 d last: x = d (q - 1)."""
    return Unpacked(signed(fields(raw[:, :64], 32, 2), 1), ONE, halves(raw, 64))


def unpack_tq1_0(raw: Bytes) -> Unpacked:
    """Base-3 digits, five a byte as a fraction of 256 (four in the last 4 bytes), f16 d: x = d (q - 1)."""
    runs = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    shifted = [raw[:, None, a:b] * POWERS_OF_3[:digits, None] for a, b, digits in runs]  # modulo 256
    fraction = np.concatenate([part.reshape(len(raw), -1) for part in shifted], axis=1)
    digit = (fraction.astype(np.uint16) * np.uint16(3) >> 8).astype(np.uint8)
    return Unpacked(signed(digit, 1), ONE, halves(raw, 52))
