"""GGUF blocks to the packed planes of `kernels/packed.cuh`: the same bits in another order, no byte more or less."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def _planes(*planes: Bytes) -> Bytes:
    return np.concatenate([np.ascontiguousarray(p).reshape(-1) for p in planes])


def _nibbles(values: Bytes) -> Bytes:
    """[.., 32] of 0..15 to [.., 16]: byte j holds values j and j + 16."""
    return values[..., :16] | values[..., 16:] << 4


def _iq3_xxs(raw: Bytes) -> Bytes:
    return _planes(raw[..., 2:66], raw[..., 66:98], raw[..., :2])


def _q2_0(raw: Bytes) -> Bytes:
    values = (raw[..., 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3  # [.., 16 bytes, 4]
    groups = values.reshape(*raw.shape[:-1], 4, 4, 4)  # 16-value words: value 4 i + j
    packed = np.zeros((*raw.shape[:-1], 4, 4), np.uint8)
    for i in range(4):
        packed |= groups[..., i, :] << np.uint8(2 * i)
    return _planes(packed, raw[..., :2])


def _q6_k(raw: Bytes) -> Bytes:
    low = np.zeros((*raw.shape[:-1], 8, 32), np.uint8)
    high = np.zeros_like(low)
    for b in range(8):
        part, r = divmod(b, 4)
        start = 64 * part + 32 * (r % 2)
        low[..., b, :] = (raw[..., start : start + 32] >> np.uint8(4 * (r // 2))) & 15
        high[..., b, :] = (raw[..., 128 + 32 * part : 160 + 32 * part] >> np.uint8(2 * r)) & 3
    bits = high[..., :8] | high[..., 8:16] << 2 | high[..., 16:24] << 4 | high[..., 24:] << 6
    return _planes(_nibbles(low), bits, raw[..., 192:208], raw[..., 208:210])


def _q4_k(raw: Bytes) -> Bytes:
    codes = np.stack(
        [raw[..., 16 + 32 * (b // 2) : 48 + 32 * (b // 2)] >> np.uint8(4 * (b % 2)) for b in range(8)], -2
    )
    return _planes(_nibbles(codes & 15), raw[..., 4:16], raw[..., :4])


def _iq2_s(raw: Bytes) -> Bytes:
    shape = (*raw.shape[:-1], 8, 4)
    both = np.concatenate([raw[..., 2:34].reshape(shape), raw[..., 34:66].reshape(shape)], -1)
    return _planes(both, np.stack([raw[..., 66:74], raw[..., 74:82]], -1), raw[..., :2])


def _nvfp4(raw: Bytes) -> Bytes:
    q = raw[..., 4:].reshape(*raw.shape[:-1], 4, 8)
    values = np.concatenate([q & 15, q >> 4], -1)  # groups of 16 in order
    return _planes(values[..., ::2] | values[..., 1::2] << 4, raw[..., :4])


_PACK = {"IQ3_XXS": _iq3_xxs, "Q2_0": _q2_0, "Q6_K": _q6_k, "Q4_K": _q4_k, "IQ2_S": _iq2_s, "NVFP4": _nvfp4}
BLOCK = {
    "IQ3_XXS": (256, 98),
    "Q2_0": (64, 18),
    "Q6_K": (256, 210),
    "Q4_K": (256, 144),
    "IQ2_S": (256, 82),
    "NVFP4": (64, 36),
}


def pack(name: str, raw: Bytes) -> Bytes:
    """Packed bytes of a matrix [n, row bytes] of GGUF blocks."""
    return _PACK[name](raw.reshape(len(raw), -1, BLOCK[name][1]))


def random_rows(name: str, n: int, k: int, seed: int) -> Bytes:
    """[n, row bytes] of random valid blocks: any code, f16 scales of 0.5 to 2 times 2^-10."""
    rng = np.random.default_rng(seed)
    values, size = BLOCK[name]
    raw = rng.integers(0, 256, (n, k // values, size), np.uint8)
    if name == "NVFP4":
        raw[..., :4] = rng.integers(16, 64, raw[..., :4].shape, np.uint8)
        return raw.reshape(n, -1)
    scale = (rng.uniform(0.5, 2.0, (n, k // values, 2)) * 2.0**-10).astype(np.float16).view(np.uint8)
    at = {"Q6_K": 208}.get(name, 0)
    raw[..., at : at + 2] = scale[..., :2]
    if name == "Q4_K":
        raw[..., 2:4] = scale[..., 2:]
    return raw.reshape(n, -1)
