"""Values in a block format: encoded where the `gguf` package can, else random blocks of the same spread."""

import numpy as np
from scripts.goldens.cases import Array

import gguf
from oracles.model import decode
from strata.gguf import TensorType

ENCODED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
# Where the half-precision scales (and minimums) of a block lie, and the ratio that centres codes on zero.
SCALES_AT = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
    "IQ2_XS": {0: 1.0},
    "IQ2_S": {0: 1.0},
    "IQ3_XXS": {0: 1.0},
    "IQ3_S": {0: 1.0},
}


def encode(values: Array, kind: TensorType, seed: int) -> Array:
    """float32 values to bytes uint8; formats without an encoder ignore all but the values' spread."""
    if kind == TensorType.F32:
        return np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1)
    if kind == TensorType.F16:
        return values.astype("<f2").reshape(-1).view(np.uint8)
    if kind == TensorType.BF16 or kind.name in ENCODED:
        rows = values.reshape(-1, values.shape[-1])
        return gguf.quantize(rows, gguf.GGMLQuantizationType(kind.value)).reshape(-1).view(np.uint8)
    if kind == TensorType.Q2_0:
        return _encode_q2_0(values)
    return _random_blocks(values, kind, seed)


def _encode_q2_0(values: Array) -> Array:
    """x = d * (q - 1), q in 0..3, four codes a byte from the low bits up."""
    blocks = values.reshape(-1, 64)
    scale = blocks.std(1, keepdims=True).astype("<f2")
    codes = np.clip(np.round(blocks / scale.astype(np.float32)) + 1, 0, 3).astype(np.uint8).reshape(-1, 16, 4)
    packed = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    return np.concatenate([scale.view(np.uint8), packed], axis=1).reshape(-1)


def _random_blocks(values: Array, kind: TensorType, seed: int) -> Array:
    """Every code is legal; the scale is set so that the decoded values have the spread of those given."""
    rng = np.random.default_rng([seed, kind.value])
    raw = rng.integers(0, 256, (values.size // kind.block_values, kind.block_bytes), dtype=np.uint8)
    # Block scales differ by up to a third, so that a kernel that reads a neighbour's is seen.
    spread = rng.uniform(0.75, 1.25, len(raw))

    def scale_by(factor: float) -> None:
        for at, ratio in SCALES_AT[kind.name].items():
            raw[:, at : at + 2] = (spread * factor * ratio).astype("<f2")[:, None].view(np.uint8)

    scale_by(1.0)
    scale_by(values.std() / decode(raw.reshape(-1), kind).std())
    return raw.reshape(-1)
