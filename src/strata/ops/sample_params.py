"""Sampling parameters as the kernels read them, and the planes of counts and biases beside them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import UsageError

# One row's parameters, the layout of SampleParams in native/include/strata/sample.h.
SAMPLE_PARAMS = np.dtype(
    [
        ("seed", "<u8"),
        ("temperature", "<f4"),  # 0: the largest logit
        ("top_k", "<i4"),  # 0: off
        ("top_p", "<f4"),  # 1: off
        ("min_p", "<f4"),  # 0: off
        ("repetition_penalty", "<f4"),
        ("presence_penalty", "<f4"),
        ("frequency_penalty", "<f4"),
        ("mask_id", "<i4"),  # row of the masks, -1: none
        ("count_slot", "<i4"),  # row of the counts plane, -1: none
        ("bias_begin", "<i4"),  # the row's part of the bias arrays
        ("bias_count", "<i4"),
        ("reserved", "<i4"),
    ]
)

_RANGES = {
    "temperature": (0.0, 1e4),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1e3),
    "presence_penalty": (-1e3, 1e3),
    "frequency_penalty": (-1e3, 1e3),
    "seed": (0, 2**64 - 1),
}


def sample_params(
    *,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    mask_id: int = -1,
    count_slot: int = -1,
    bias_begin: int = 0,
    bias_count: int = 0,
) -> NDArray[Any]:
    """A SAMPLE_PARAMS record, shape []; UsageError names a value out of its range."""
    values = locals().copy()
    for name, (low, high) in _RANGES.items():
        if not low <= values[name] <= high:  # NaN fails as well
            raise UsageError(f"{name} must be from {low:g} to {high:g}, got {values[name]}")
    return np.array(tuple(values.get(name, 0) for name in SAMPLE_PARAMS.fields or ()), SAMPLE_PARAMS)


def pack_bias(bias: Mapping[int, float], vocab: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids (ascending, distinct) and values of a logit bias; UsageError on an id outside the vocabulary."""
    ids = np.array(sorted(bias), np.int64)
    values = np.array([bias[int(i)] for i in ids], np.float32)
    if len(ids) and not 0 <= ids[0] <= ids[-1] < vocab:
        outside = ids[0] if ids[0] < 0 else ids[-1]
        raise UsageError(f"logit bias names token {outside}, the vocabulary has {vocab}")
    if not np.isfinite(values).all():
        raise UsageError("logit bias values must be finite")
    return ids.astype(np.int32), values


def count_prompt(counts: NDArray[np.int32], token_ids: Iterable[int]) -> None:
    """Marks prompt tokens in a request's row of the counts plane, i32 [vocab]: bit 0."""
    counts[np.fromiter(token_ids, np.int64)] |= 1


def count_output(counts: NDArray[np.int32], token_ids: Iterable[int]) -> None:
    """Counts committed output tokens in a request's row of the counts plane: the bits above bit 0."""
    np.add.at(counts, np.fromiter(token_ids, np.int64), 2)
