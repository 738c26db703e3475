"""The contract's float operations in NumPy, bit for bit those of `native/include/strata/contract.h`.

Every function takes and returns float32 arrays. NumPy has no fused multiply-add, so `fma` makes one from float64.
"""

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

BLOCK = 32  # activation block: one scale per 32 values
MAX_SEGMENTS, SEGMENT_BLOCKS = (
    16,
    4,
)  # of a quantised product: at most so many parts of K, of at least so many blocks
LANES = 32  # lanes of every float sum
ATTENTION_SPLIT = 256  # cells per attention split

_LOW_BITS = np.int64((1 << 29) - 1)  # what float32 drops of a float64 mantissa
_HALF = np.int64(1 << 28)
_TINY = np.float64(2.0**-126)


def fma(a: Float32, b: Float32, c: Float32) -> Float32:
    """a * b + c with one rounding, as C's fmaf.

    The float64 product is exact (24 + 24 bits). Rounding the float64 sum a second time goes wrong only where the
    first rounding landed on a float32 midpoint or below the normal range; those few are redone by rounding to odd.
    """
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = np.asarray(total.astype(np.float32))
        doubtful = ((total.view(np.int64) & _LOW_BITS) == _HALF) | (np.abs(total) < _TINY)
        if doubtful.any():
            product, addend = np.broadcast_arrays(product, addend)
            result[doubtful] = _round_odd(product[doubtful], addend[doubtful]).astype(np.float32)
    return result


def _round_odd(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """a + b rounded to odd (Boldo and Melquiond 2008): a later rounding to float32 is then the correct one."""
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)  # TwoSum (Knuth): exact
    bits = total.view(np.int64).copy()
    inexact_even = ((error > 0) | (error < 0)) & ((bits & 1) == 0)
    away_from_zero = (error > 0) == (total > 0)
    bits += np.where(inexact_even, np.where(away_from_zero, 1, -1), 0)
    return bits.view(np.float64)


def tree_sum(lanes: Float32) -> Float32:
    """Adds the 32 lanes on the last axis with the fixed tree: halves 16, 8, 4, 2, 1 apart."""
    half = LANES // 2
    while half:
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
        half //= 2
    return lanes[..., 0]


def _lane_chunks(x: Float32) -> Float32:
    """[..., n] as [..., ceil(n / 32), 32], padded with zeros, which change no lane."""
    n = x.shape[-1]
    padding = -n % LANES
    if padding:
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
    return x.reshape(*x.shape[:-1], (n + padding) // LANES, LANES)


def lane_sum(x: Float32) -> Float32:
    """Sum over the last axis: element i into lane i mod 32, lanes added by the tree."""
    chunks = _lane_chunks(x)
    lanes = np.zeros((*chunks.shape[:-2], LANES), np.float32)
    for i in range(chunks.shape[-2]):
        lanes = lanes + chunks[..., i, :]
    return tree_sum(lanes)


def lane_dot(a: Float32, b: Float32) -> Float32:
    """Sum of a * b over the last axis with fma in lanes i mod 32, then the tree. Leading axes broadcast."""
    left, right = _lane_chunks(a), _lane_chunks(b)
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    lanes = np.zeros((*shape, LANES), np.float32)
    for i in range(left.shape[-2]):
        lanes = fma(left[..., i, :], right[..., i, :], lanes)
    return tree_sum(lanes)


def _f32(value: float) -> np.float32:
    return np.float32(value)


_LN2_HIGH, _LN2_LOW = _f32(0.693145751953125), _f32(1.42860682030941723e-6)
_LOG2_E = _f32(1.44269504088896341)
_EXP_TERMS = [1.98412698e-4, 1.38888889e-3, 8.33333377e-3, 4.16666679e-2, 1.66666672e-1, 0.5, 1.0, 1.0]
_LOG_TERMS = [0.222222222, 0.285714285, 0.4, 0.666666667]
_SQRT_HALF = np.int32(0x3F3504F3)


def _horner(terms: list[float], x: Float32) -> Float32:
    p: Float32 = np.full(np.shape(x), terms[0], np.float32)
    for term in terms[1:]:
        p = fma(p, x, _f32(term))  # type: ignore[arg-type]  # a scalar addend broadcasts
    return p


def exp32(x: Float32) -> Float32:
    """e^x; 0 below -87, x held at 88 above, NaN kept. contract.h `exp32`."""
    x = np.asarray(x, np.float32)
    held = np.clip(np.where(np.isnan(x), _f32(0), x), _f32(-87), _f32(88))
    n = np.rint(held * _LOG2_E)
    r = fma(n, -_LN2_HIGH, held)  # type: ignore[arg-type]  # as in _horner
    r = fma(n, -_LN2_LOW, r)  # type: ignore[arg-type]  # as in _horner
    scale = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    result = np.where(x < _f32(-87), _f32(0), _horner(_EXP_TERMS, r) * scale)
    return np.where(np.isnan(x), x, result)


def sigmoid32(x: Float32) -> Float32:
    """1 / (1 + e^-x)."""
    return _f32(1) / (_f32(1) + exp32(-x))


def silu32(x: Float32) -> Float32:
    """x / (1 + e^-x)."""
    return x / (_f32(1) + exp32(-x))


def gelu32(x: Float32) -> Float32:
    """x / (1 + e^-u), u = 2 sqrt(2 / pi) (x + 0.044715 x^3): the tanh form of gelu. contract.h `gelu32`."""
    u = _f32(1.5957691216) * fma(_f32(0.044715) * (x * x), x, x)
    return x / (_f32(1) + exp32(-u))


def log32(x: Float32) -> Float32:
    """Natural logarithm of positive normal numbers. contract.h `log32`."""
    shifted = np.asarray(x, np.float32).view(np.int32) - _SQRT_HALF
    e = (shifted >> 23).astype(np.float32)
    m = ((shifted & 0x007FFFFF) + _SQRT_HALF).view(np.float32)
    f = m - _f32(1)
    half = _f32(0.5) * (f * f)
    s = f / (_f32(2) + f)
    z = s * s
    t = fma(s, fma(z, _horner(_LOG_TERMS, z), half), e * _LN2_LOW)
    return fma(e, _LN2_HIGH, f - (half - t))  # type: ignore[arg-type]  # as in _horner


def softplus32(x: Float32) -> Float32:
    """log(1 + e^x). contract.h `softplus32`."""
    x = np.asarray(x, np.float32)
    e = exp32(np.minimum(x, _f32(20)))
    y = _f32(1) + e
    return np.where(x > 20, x, log32(y) + (e - (y - _f32(1))) / y)


def segment_bounds(blocks: int) -> list[int]:
    """Block indices where the segments of a row of `blocks` blocks begin, and its end. contract.h `segments`."""
    count = 1
    while count < MAX_SEGMENTS and blocks >= 2 * count * SEGMENT_BLOCKS:
        count *= 2
    return [s * blocks // count for s in range(count + 1)]
