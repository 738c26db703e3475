"""Which file and byte a mapped weight lies at, and copies of weights outside the map."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strata.errors import MemoryLimitError, ModelFileError
from strata.gguf import ModelFile
from strata.ops import Weight

_PIECE = 1 << 26  # bytes of one read


class FilePlaces:
    """Places in the shards of model files."""

    def __init__(self, files: Sequence[ModelFile]):
        self._sources = [shard.source for file in dict.fromkeys(files) for shard in file.shards]
        self.paths = [str(source.path) for source in self._sources]

    def find(self, weight: Weight) -> tuple[int, int]:
        """Index of the path, and the offset of the weight's first byte."""
        place = self.maybe(weight)
        assert place is not None, f"{weight} lies in none of {', '.join(self.paths)}"
        return place

    def maybe(self, weight: Weight) -> tuple[int, int] | None:
        """As `find`; None for bytes that were made at load."""
        at = int(weight.data.ctypes.data)
        for i, source in enumerate(self._sources):
            if source.address <= at < source.address + source.size:
                return i, at - source.address
        return None


class Copies:
    """Weights read into memory of our own when first asked for: cutting the file short cannot end the process."""

    def __init__(self, files: Sequence[ModelFile]):
        self._places = FilePlaces(files)
        self._copies: dict[Weight, NDArray[np.uint8]] = {}

    def __call__(self, weight: Weight) -> NDArray[np.uint8]:
        """The weight's bytes; ModelFileError where the file does not give them."""
        if weight not in self._copies:
            self._copies[weight] = self._read(weight)
        return self._copies[weight]

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(copy.nbytes for copy in self._copies.values())

    def _read(self, weight: Weight) -> NDArray[np.uint8]:
        place = self._places.maybe(weight)
        if place is None or not weight.data.flags.c_contiguous:
            return weight.data
        path, offset = self._places.paths[place[0]], place[1]
        try:
            copy = np.empty(weight.data.nbytes, np.uint8)
        except MemoryError:
            needed = weight.data.nbytes / 2**30
            raise MemoryLimitError(f"{path}: no memory for {weight.name}, {needed:.2f} GiB") from None
        with Path(path).open("rb", buffering=0) as file:
            at = 0
            while at < copy.nbytes:
                count = os.preadv(file.fileno(), [copy.data[at : at + _PIECE]], offset + at)
                if count == 0:
                    raise ModelFileError(
                        f"{path}: the file ends at byte {offset + at}, {weight.name} at {offset + copy.nbytes}"
                    )
                at += count
        return copy
