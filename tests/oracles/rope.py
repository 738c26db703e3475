"""Rotary position embedding (Su et al. 2021), with linear, YaRN (Peng et al. 2023) and llama3 scaling."""

import math

import numpy as np

from oracles.model import Array, Model

Angles = tuple[Array, Array]
"""cos and sin [tokens, rotary_dim / 2]."""


def tables(model: Model, positions: Array) -> Angles:
    """For each of `positions`."""
    frequencies, magnitude = _frequencies(model)
    angles = positions[:, None] * frequencies
    return (np.cos(angles) * magnitude).astype(model.dtype), (np.sin(angles) * magnitude).astype(model.dtype)


def rotate(x: Array, angles: Angles, halves: bool) -> Array:
    """x [tokens, heads, head_dim]: the first rotary_dim values of each head turn, the others pass."""
    cos, sin = (part[:, None] for part in angles)
    width = cos.shape[-1]
    first = np.arange(width) if halves else 2 * np.arange(width)
    second = first + (width if halves else 1)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def _frequencies(model: Model) -> tuple[Array, float]:
    """Angle per position of each pair, and the factor on cos and sin."""
    rotary = int(model.key("rope.dimension_count"))
    theta = float(model.key("rope.freq_base"))
    frequencies = theta ** (-np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    if (divisors := model.maybe("rope_freqs.weight")) is not None:
        frequencies = frequencies / divisors
    kind = model.key("rope.scaling.type", "none")
    if kind == "none":
        return frequencies, 1.0
    factor = float(model.key("rope.scaling.factor"))
    if kind == "linear":
        return frequencies / factor, 1.0
    original = float(model.key("rope.scaling.original_context_length"))
    keep = _kept_share(rotary, theta, original)
    return frequencies * keep + frequencies / factor * (1 - keep), 1 + 0.1 * math.log(factor)


def _kept_share(rotary: int, theta: float, original: float, fast: float = 32, slow: float = 1) -> Array:
    """YaRN section 3.2: 1 for pairs that turn often within the trained context, 0 for those that do not."""

    def pair(turns: float) -> float:
        return rotary * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair(fast)), 0)
    high = min(math.ceil(pair(slow)), rotary - 1)
    return 1 - np.clip((np.arange(rotary // 2) - low) / max(high - low, 1e-3), 0, 1)
