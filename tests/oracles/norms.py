"""RMS norms. Weights are as GGUF stores them: any "1 +" is already inside."""

import numpy as np

from oracles.model import Array


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Over the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def grouped_norm(x: Array, weight: Array, groups: int, eps: float) -> Array:
    """Statistics over each of `groups` equal slices of the last axis; the weight has its full width."""
    slices = x.reshape(*x.shape[:-1], groups, -1)
    return rms_norm(slices, weight.reshape(groups, -1), eps).reshape(x.shape)


def l2_norm(x: Array, eps: float = 1e-6) -> Array:
    """x / sqrt(sum x^2 + eps): the epsilon is inside the root."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + eps)
