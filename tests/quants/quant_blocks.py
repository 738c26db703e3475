"""Raw blocks for tests: random bytes with sane or extreme half scales, and addresses of arrays."""

import numpy as np
from numpy.typing import NDArray

from strata.quants import FORMATS, Format

QUANTISED = [name for name, f in FORMATS.items() if f.quantised]

# Where the half-precision numbers of a block lie; IQ1_M spreads its half over four nibbles.
HALVES_AT = {
    **dict.fromkeys(["F16", "Q4_0", "Q5_0", "Q8_0", "Q2_0", "IQ4_NL", "IQ4_XS", "IQ1_S", "IQ2_XXS"], (0,)),
    **dict.fromkeys(["IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"], (0,)),
    **dict.fromkeys(["Q4_1", "Q5_1", "Q4_K", "Q5_K"], (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}

# Zeros, smallest and largest subnormals, smallest normals, ones, largest: both signs.
EXTREME = np.array([0.0, 2.0**-24, 6.09755516e-5, 2.0**-14, 1.0, 65504.0], np.float16)
EXTREME = np.concatenate([EXTREME, -EXTREME])


def _put_iq1m_scale(raw: NDArray[np.uint8], scale: NDArray[np.float16]) -> None:
    bits = scale.view(np.uint16)
    for i in range(4):
        raw[:, 49 + 2 * i] = (raw[:, 49 + 2 * i] & 15) | ((bits >> (4 * i) & 15) << 4)


def random_blocks(fmt: Format, n: int, seed: int, extreme: bool = False) -> NDArray[np.uint8]:
    """n blocks [n, bytes]: every code random; halves finite, either of the size of weights or extreme."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)

    def scales() -> NDArray[np.float16]:
        return rng.choice(EXTREME, n) if extreme else rng.normal(0, 0.02, n).astype(np.float16)

    if fmt.name == "IQ1_M":
        _put_iq1m_scale(raw, scales())
    for at in HALVES_AT.get(fmt.name, ()):
        raw[:, at : at + 2] = scales()[:, None].view(np.uint8)
    if fmt.name == "MXFP4":  # above 250 the largest products overflow; weights lie near 2^-7
        raw[:, 0] = rng.integers(0, 251, n) if extreme else rng.integers(115, 125, n)
    if fmt.name in ("F32", "BF16"):
        values = rng.normal(0, 1, n).astype(np.float32).view(np.uint8).reshape(n, 4)
        raw[:] = values[:, 4 - fmt.block_bytes :]
    return raw


def address(array: NDArray[np.generic]) -> int:
    """Address of a contiguous array's first byte."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """True when shapes and all bits agree (so +0 and -0 differ)."""
    return a.shape == b.shape and np.array_equal(
        np.ascontiguousarray(a).view(np.uint32), np.ascontiguousarray(b).view(np.uint32)
    )
