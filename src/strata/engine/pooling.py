"""Embeddings of a decoder model: the rows that its head would read, over the prompt, as one vector."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from strata.errors import FaultError
from strata.gguf import ModelFile

PoolingMode = Literal["mean", "last"]
_FILE_KINDS: dict[int, PoolingMode] = {1: "mean", 3: "last"}  # of `pooling_type`, llama.cpp's enum


def pooling_mode(file: ModelFile) -> PoolingMode:
    """What the file says, else the mean: a model that was trained to predict has nothing special in its last row."""
    architecture = file.get("general.architecture", str, "")
    return _FILE_KINDS.get(file.get(f"{architecture}.pooling_type", int, 1), "mean")


class Pooling:
    """Takes the features of a prompt's rows in order, each once, however they are cut; float64, so that the sum of a
    long prompt keeps its digits."""

    def __init__(self, mode: PoolingMode):
        self._mode = mode
        self._total: NDArray[np.float64] = np.zeros(0)

    def add(self, position: int, rows: NDArray[Any]) -> None:
        """Features [n, width] of the rows from `position` on; at 0 begins anew."""
        if position == 0 or self._mode == "last":
            self._total = np.zeros(rows.shape[1])
        for row in rows if self._mode == "mean" else rows[-1:]:
            self._total += row

    def vector(self) -> NDArray[np.float32]:
        """The embedding, float32 [width], of length 1."""
        norm = float(np.linalg.norm(self._total))
        if not norm:
            raise FaultError("the embedding has no length")
        return (self._total / norm).astype(np.float32)
