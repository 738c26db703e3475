"""Encoders that search scales for the least squared error: float32 blocks [n, values] to bytes.

A candidate scale gives codes; for those codes the best scale is a least-squares solution, which replaces it.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from strata.errors import UsageError
from strata.quants.encode import Floats, half_bytes, inverse
from strata.quants.tables import IQ4_VALUES
from strata.quants.unpack import Bytes, pack_fields

Assign = Callable[[Floats], Floats]  # x / scale to the nearest codes that the format has


def check_size(x: Floats) -> None:
    """UsageError for values beyond what any of these formats holds; squares of the rest are finite."""
    largest, limit = float(np.abs(x).max()), 65504 * 128 * 32
    if largest > limit:
        raise UsageError(
            f"a value of {largest:g} is beyond {limit:g}, the most a half-precision scale reaches"
        )


def _dot(a: Floats, b: Floats) -> Floats:
    total: Floats = np.einsum("ij,ij->i", a, b)[:, None]
    return total


def fit_scale(x: Floats, peaks: Floats, assign: Assign, weights: Floats | None = None) -> Floats:
    """Scales [n, 1] of blocks [n, w] that nearly minimise the sum of weights (x - scale code)^2.

    `peaks`: codes tried for the value of largest size. `weights` [n, w], all 1 if not given.
    """
    check_size(x)
    weighed = x if weights is None else x * weights
    to_peak = inverse(np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1))
    scale, gain = np.zeros_like(to_peak), np.zeros_like(to_peak)

    def consider(codes: Floats) -> None:
        xq, qq = _dot(weighed, codes), _dot(codes, codes if weights is None else codes * weights)
        best = xq * inverse(qq)
        better = best * xq > gain  # the error is |x|^2 - gain
        scale[better], gain[better] = best[better], (best * xq)[better]

    for peak in peaks:
        consider(assign(x * (peak * to_peak)))
    consider(assign(x * inverse(scale)))
    return scale


def _rounded(low: int, high: int) -> Assign:
    return lambda v: np.clip(np.rint(v), np.float32(low), np.float32(high))


def _nearest_iq4() -> NDArray[np.uint8]:
    """Nearest IQ4 value of v, by floor(2 v) + 256: midpoints between values are multiples of 1/2."""
    inside = np.arange(-256, 256) / 2 + 0.25
    nearest: NDArray[np.uint8] = np.abs(inside[:, None] - IQ4_VALUES).argmin(axis=1).astype(np.uint8)
    return nearest


_IQ4_INDEX = _nearest_iq4()
_IQ4_PEAKS = np.concatenate([np.linspace(-147, -99, 13), np.linspace(97, 129, 7)]).astype(np.float32)
_Q2_0_PEAKS = np.concatenate([np.linspace(1, 4, 13), np.linspace(-2.5, -1, 7)]).astype(np.float32)
_Q6_K_PEAKS = np.linspace(-33, -29, 9).astype(np.float32)
_REFINEMENTS = 2
_Q4_K_RANGES = np.linspace(12, 16, 9).astype(np.float32)


def _iq4_index(v: Floats) -> NDArray[np.uint8]:
    index: NDArray[np.uint8] = _IQ4_INDEX[np.clip(np.floor(v * 2), -256, 255).astype(np.int16) + 256]
    return index


def encode_iq4_nl(x: Floats, weights: Floats | None = None) -> Bytes:
    """x = d t[q], t the IQ4 table."""
    table = IQ4_VALUES.astype(np.float32)
    half = half_bytes(fit_scale(x, _IQ4_PEAKS, lambda v: table[_iq4_index(v)], weights))
    return np.hstack([half, pack_fields(_iq4_index(x * inverse(stored(half))), 16, 4)])


def encode_q2_0(x: Floats, weights: Floats | None = None) -> Bytes:
    """x = d (q - 1), q in 0..3; d takes the sign that suits the longer tail."""
    assign = _rounded(-1, 2)
    half = half_bytes(fit_scale(x, _Q2_0_PEAKS, assign, weights))
    codes = assign(x * inverse(stored(half))) + np.float32(1)
    return np.hstack([half, pack_fields(codes.astype(np.uint8), 1, 2)])


def encode_q6_k(x: Floats) -> Bytes:
    """x = d s (q - 32), s int8 per 16 values."""
    assign = _rounded(-32, 31)
    parts = x.reshape(-1, 16)
    scales = fit_scale(parts, _Q6_K_PEAKS, assign).reshape(-1, 16)
    widest = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)
    half = half_bytes(widest / np.float32(-128))
    d = stored(half)
    steps = np.clip(np.rint(scales * inverse(d)), -128, 127)
    codes = assign(parts * inverse((d * steps).reshape(-1, 1))) + np.float32(32)
    q = codes.astype(np.uint8).reshape(len(x), -1)
    low, high = pack_fields(q & np.uint8(15), 64, 4), pack_fields(q >> np.uint8(4), 32, 2)
    return np.hstack([low, high, steps.astype(np.int8).view(np.uint8), half])


def fit_affine(x: Floats, ranges: Floats, levels: int) -> tuple[Floats, Floats]:
    """Scales and minimums [n, 1], both >= 0, of blocks [n, w] for x ~ scale q - min, q in 0..levels - 1.

    `ranges`: codes tried for the distance from the smallest to the largest value.
    """
    check_size(x)
    assign = _rounded(0, levels - 1)
    width = np.float32(x.shape[1])
    low = np.minimum(x.min(axis=1, keepdims=True), 0)
    sum_x = x.sum(axis=1, keepdims=True)
    scale, minimum, gain = np.zeros_like(low), -low, np.full_like(low, -np.inf)

    def consider(q: Floats) -> None:
        sum_q, qq, xq = q.sum(axis=1, keepdims=True), _dot(q, q), _dot(x, q)
        s = (width * xq - sum_x * sum_q) * inverse(width * qq - sum_q * sum_q)
        m = (s * sum_q - sum_x) / width
        s, m = np.where(m < 0, xq * inverse(qq), s), np.maximum(m, 0)
        # |x|^2 - |x - s q + m|^2
        value = 2 * (s * xq - m * sum_x) - (s * s * qq - 2 * s * m * sum_q + width * m * m)
        better = (value > gain) & (s > 0)
        scale[better], minimum[better], gain[better] = s[better], m[better], value[better]

    shifted = (x - low) * inverse(x.max(axis=1, keepdims=True) - low)
    for reach in ranges:
        consider(assign(shifted * reach))
    for _ in range(_REFINEMENTS):
        consider(assign((x + minimum) * inverse(scale)))
    return scale, minimum


def _six_bits(numbers: Floats) -> tuple[Bytes, NDArray[np.uint8]]:
    """Numbers >= 0 [n, 8] as a common half [n, 2] and steps 0..63 of it."""
    half = half_bytes(numbers.max(axis=1, keepdims=True) / np.float32(63))
    return half, np.clip(np.rint(numbers * inverse(stored(half))), 0, 63).astype(np.uint8)


def encode_q4_k(x: Floats) -> Bytes:
    """x = d s q - dmin m, 6-bit s and m per 32 values."""
    parts = x.reshape(-1, 32)
    scales, minimums = fit_affine(parts, _Q4_K_RANGES, 16)
    d, s = _six_bits(scales.reshape(-1, 8))
    dmin, m = _six_bits(minimums.reshape(-1, 8))
    step, low = (stored(d) * s).reshape(-1, 1), (stored(dmin) * m).reshape(-1, 1)
    codes = _rounded(0, 15)((parts + low) * inverse(step))
    nibbles = pack_fields(codes.astype(np.uint8).reshape(len(x), -1), 32, 4)
    first = [a[:, :4] | (a[:, 4:] >> np.uint8(4) << np.uint8(6)) for a in (s, m)]
    last = (s[:, 4:] & np.uint8(15)) | (m[:, 4:] << np.uint8(4))
    return np.hstack([d, dmin, *first, last, nibbles])


def stored(half: Bytes) -> Floats:
    """The scale as a reader will see it."""
    return half.view("<f2").astype(np.float32)
