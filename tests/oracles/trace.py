"""Measures: the error of logits, and how clear a discrete choice was, so that rounding cannot turn it."""

from dataclasses import dataclass

import numpy as np

from oracles.model import Array


@dataclass(frozen=True)
class Gap:
    """Of a layer's router or block selection: score of the last taken less that of the first left out."""

    kind: str  # router or blocks
    layer_idx: int
    values: Array  # [tokens]; infinite where everything is taken
    dropped: int = 0  # blocks left out, over all tokens


def boundary_gap(scores: Array, taken: int) -> float:
    """Gap between place `taken` and the next of descending scores."""
    if len(scores) <= taken:
        return np.inf
    ranked = np.sort(scores)[::-1]
    return float(ranked[taken - 1] - ranked[taken])


def nrmse(found: Array, expected: Array) -> float:
    """RMS of the error over RMS of the expected values."""
    difference = found.astype(np.float64) - expected
    return float(np.sqrt((difference**2).mean() / (expected.astype(np.float64) ** 2).mean()))
