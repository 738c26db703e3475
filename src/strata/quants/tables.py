"""Codebooks that formats index: grids of the I-quants, 4-bit tables, small floats."""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# IQ4_NL and IQ4_XS (ggml, kvalues_iq4nl).
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

# E2M1 times two, so that every entry is an integer (OCP Microscaling Formats 1.0, table 5); -0 reads as 0.
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)

POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)

GRID_NAMES = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S")


@cache
def grid(name: str) -> NDArray[np.int8]:
    """Grid int8 [entries, 8 or 4] of an I-quant; magnitudes, except IQ1_S whose entries are -1, 0, 1."""
    with np.load(Path(__file__).with_name("grids.npz"), allow_pickle=False) as grids:
        values: NDArray[np.int8] = grids[name]
    values.setflags(write=False)
    return values


def _sign_bytes() -> NDArray[np.uint8]:
    index = np.arange(128, dtype=np.uint8)
    parity = np.unpackbits(index[:, None], axis=1).sum(axis=1).astype(np.uint8) & 1
    signs: NDArray[np.uint8] = index | (parity << np.uint8(7))
    return signs


# Seven stored signs; the eighth makes the number of minus signs even.
SIGN_BYTES = _sign_bytes()


def _e8m0_halved() -> NDArray[np.float32]:
    code = np.arange(256, dtype=np.uint32)
    exponents = np.where(code < 2, np.uint32(0x00200000) << code, (code - 1) << 23)
    return exponents.astype(np.uint32).view(np.float32)


def _ue4m3_halved() -> NDArray[np.float32]:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa / 8.0 * 2.0**-6, (1 + mantissa / 8.0) * 2.0 ** (exponent - 7))
    value[0x7F] = 0.0  # the one NaN code of unsigned E4M3
    return (value * 0.5).astype(np.float32)


# Scales of MXFP4 and NVFP4 by code, halved because the codes are doubled.
E8M0_HALVED = _e8m0_halved()
UE4M3_HALVED = _ue4m3_halved()
