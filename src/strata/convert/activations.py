"""How much the errors of weights count: mean squares of what a model's products read, from a file."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from strata.convert.checkpoint import Floats
from strata.convert.rows import Planned
from strata.errors import ModelFileError, UsageError


class Activations:
    """A `.npz` of float arrays by GGUF tensor name: [k], or of experts [experts, k]."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with np.load(path, allow_pickle=False) as found:
                self._squares: Mapping[str, Floats] = {
                    name: found[name].astype(np.float32) for name in found.files
                }
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise ModelFileError(f"{path}: not a .npz file of arrays: {error}") from None

    def check(self, planned: list[Planned]) -> None:
        """UsageError for names that no tensor has: they would be passed over in silence."""
        names = {tensor.name for tensor in planned}
        if unknown := sorted(set(self._squares) - names):
            raise UsageError(
                f"{self.path}: {len(unknown)} arrays belong to no tensor: {', '.join(unknown[:3])}"
            )

    def of(self, tensor: Planned) -> Floats | None:
        """float32 [rows or 1, k] of a tensor, or None; each row's mean is 1 where it is not all zero."""
        if tensor.name not in self._squares:
            return None
        squares, shape = self._squares[tensor.name], tensor.rows.shape
        if (
            squares.shape not in ((shape[-1],), (shape[0], shape[-1])[: len(shape) - 1])
            or (squares < 0).any()
        ):
            raise UsageError(
                f"{self.path}: {tensor.name} of shape {list(shape)} cannot take {list(squares.shape)}"
            )
        squares = squares.reshape(-1, shape[-1])
        squares = squares / np.maximum(squares.mean(axis=1, keepdims=True), 1e-30)
        return squares if len(squares) == 1 else np.repeat(squares, shape[1], axis=0)
