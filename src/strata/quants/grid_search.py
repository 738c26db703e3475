"""Encoder of IQ3_XXS: scales, signs and grid entries searched for the least squared error, weighed where that is known.

Of 32 values with magnitudes m and weights w, a scale s picks in every 4 the grid entry g that is nearest to m / s. For
these entries the best scale is sum(w m g) / sum(w g^2), and what the error falls by is sum(w m g)^2 / sum(w g^2).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from strata.quants.encode import Floats, half_bytes, inverse
from strata.quants.search import check_size, stored
from strata.quants.tables import grid
from strata.quants.unpack import Bytes

_LARGEST = np.float32(62)  # of the grid
_REACHES = np.linspace(0.6, 1.2, 9, dtype=np.float32)  # candidates for s * 62 / amax
_STEPS = 31  # the largest scale in units of d / 4: scales are odd numbers of them
_TINY = np.float32(1e-30)


@cache
def _features() -> Floats:
    """[8, 256]: a product of (w m, w) with it is the weighed likeness of 4 magnitudes to every entry, twice over."""
    entries = grid("IQ3_XXS").astype(np.float32)
    features: Floats = np.concatenate([2 * entries.T, -np.square(entries.T)])
    return features


def encode_iq3_xxs(x: Floats, weights: Floats | None = None) -> Bytes:
    """x = d (0.5 + s) / 2 g, s 4-bit per 32 values, an even number of minuses in 8. `weights` [n, 256], >= 0."""
    check_size(x)
    w = np.ones_like(x) if weights is None else weights + _TINY
    signs, m = _even_signs(x, w)
    m32, w32 = m.reshape(-1, 32), w.reshape(-1, 32)
    scales = _fit(m32, w32).reshape(-1, 8)
    half = half_bytes(scales.max(axis=1, keepdims=True) * np.float32(4 / _STEPS))
    steps = _steps(scales, stored(half))
    for _ in range(2):  # the one number that all share, for the entries found, and the entries again
        unit: Floats = (2 * steps + 1).astype(np.float32) * np.float32(0.25)
        index = _nearest(m32, w32, (stored(half) * unit).reshape(-1, 1))
        q = grid("IQ3_XXS")[index].reshape(len(x), 8, 32) * unit[:, :, None]
        q = q.reshape(len(x), 256)
        top, bottom = (w * m * q).sum(axis=1, keepdims=True), (w * q * q).sum(axis=1, keepdims=True)
        better = top * inverse(bottom)
        half = np.where(better > 0, half_bytes(np.maximum(better, 0)), half)
    index = _nearest(m32, w32, (stored(half) * unit).reshape(-1, 1))
    return np.hstack([half, index.reshape(len(x), 64), _words(signs, steps)])


def _even_signs(x: Floats, w: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """Minus or not, an even number in every 8, and x by these signs: the cheapest value may end up below 0."""
    eights = x.reshape(-1, 8)
    minus = eights < 0
    odd = minus.sum(axis=1) % 2 == 1
    cheapest = (w.reshape(-1, 8) * np.square(eights)).argmin(axis=1)
    minus[odd, cheapest[odd]] ^= True
    return minus.reshape(x.shape), np.where(minus, -eights, eights).reshape(x.shape)


def _nearest(m: Floats, w: Floats, scale: Floats) -> NDArray[np.uint8]:
    """Grid entries [n, 8] for rows [n, 32] divided by their scale."""
    scaled = (m * inverse(scale)).reshape(-1, 4)
    weights = w.reshape(-1, 4)
    likeness = np.hstack([weights * scaled, weights]) @ _features()
    index: NDArray[np.uint8] = likeness.argmax(axis=1).astype(np.uint8).reshape(len(m), 8)
    return index


def _fit(m: Floats, w: Floats) -> Floats:
    """Scale of each row [n, 32]."""
    largest = np.abs(m).max(axis=1, keepdims=True)
    best, gain = np.zeros_like(largest), np.zeros_like(largest)
    for reach in _REACHES:
        scale = largest * (reach / _LARGEST)
        g = grid("IQ3_XXS")[_nearest(m, w, scale)].reshape(m.shape).astype(np.float32)
        top = (w * m * g).sum(axis=1, keepdims=True)
        fitted = top * inverse((w * g * g).sum(axis=1, keepdims=True))
        better = fitted * top > gain
        best, gain = np.where(better, fitted, best), np.where(better, fitted * top, gain)
    fitted_scales: Floats = np.maximum(best, np.float32(0))
    return fitted_scales


def _steps(scales: Floats, d: Floats) -> NDArray[np.uint8]:
    """4-bit s for each scale, d (0.5 + s) / 2 being what a reader makes of it."""
    rounded: NDArray[np.uint8] = np.clip(np.rint(scales * inverse(d) * 2 - 0.5), 0, 15).astype(np.uint8)
    return rounded


def _words(minus: NDArray[np.bool_], steps: NDArray[np.uint8]) -> Bytes:
    """Per 32 values a word: four times seven signs, the eighth being given by parity, and the scale on top."""
    sevens = np.packbits(minus.reshape(-1, 8), axis=1, bitorder="little").astype(np.uint32) & 127
    words = (sevens.reshape(-1, 4) << np.array([0, 7, 14, 21], np.uint32)).sum(axis=1, dtype=np.uint32)
    words |= steps.reshape(-1).astype(np.uint32) << np.uint32(28)
    packed: Bytes = words.astype("<u4").view(np.uint8).reshape(len(steps), 32)
    return packed
