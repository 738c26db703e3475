"""From file tensors to `Weight` handles: shapes are checked where an architecture names them, bytes stay mapped."""

from dataclasses import dataclass

import numpy as np

from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import ModelFile
from strata.ops import Weight
from strata.quants import FORMATS


@dataclass(frozen=True)
class WeightReader:
    """Looks tensors up by GGUF name."""

    file: ModelFile

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def get(self, name: str, *shape: int) -> Weight:
        """The tensor, whose shape (rows first) must be `shape`; -1 takes whatever is there."""
        if name not in self.file.tensors:
            raise ModelFileError(f"{self.file.path}: tensor {name} is missing")
        info = self.file.tensors[name]
        found = tuple(reversed(info.ne))
        if len(found) != len(shape) or any(want not in (-1, n) for want, n in zip(shape, found, strict=True)):
            wanted = ["any" if n == -1 else n for n in shape]
            raise ModelFileError(
                f"{self.file.path}: tensor {name} has shape {list(found)}, expected {wanted}"
            )
        if info.type.name not in FORMATS:
            raise UnsupportedError(
                f"{self.file.path}: tensor {name} has type {info.type.name}; supported: {', '.join(FORMATS)}"
            )
        return Weight(name, FORMATS[info.type.name], found, self.file.data(name))

    def maybe(self, name: str, *shape: int) -> Weight | None:
        """The tensor, or None where the file has none of that name."""
        return self.get(name, *shape) if name in self else None

    def floats(self, name: str, *shape: int) -> Weight | None:
        """As `maybe`, for vectors that kernels read as F32: other float types are widened."""
        weight = self.maybe(name, *shape)
        if weight is None or weight.format.name == "F32":
            return weight
        if not weight.is_float:
            raise UnsupportedError(
                f"{self.file.path}: tensor {name} has type {weight.format.name}, expected F32"
            )
        data = np.ascontiguousarray(weight.decode()).view(np.uint8).reshape(-1)
        return Weight(name, FORMATS["F32"], weight.shape, data)

    def vector(self, name: str, width: int) -> Weight:
        """A required F32 row of `width` values."""
        return self.floats(name, width) or self.get(name, width)
