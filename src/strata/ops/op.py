"""The op record's base: an op is a frozen dataclass whose fields name its buffers, weights and constants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.ops.buffers import Buffer, Weight


class Q8(NamedTuple):
    """Quantised activations as NumPy holds them in contract mode (plain float32 rows stand in for it in float mode)."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    sums: NDArray[np.int16]


class Arrays:
    """Where the reference backend keeps each buffer's array."""

    def __init__(
        self, arrays: Mapping[Buffer, Any], decoded: dict[Weight, NDArray[np.float32]] | None = None
    ):
        self._arrays = arrays
        self._decoded = {} if decoded is None else decoded

    def __getitem__(self, buffer: Buffer) -> Any:
        return self._arrays[buffer]

    def decoded(self, weight: Weight) -> NDArray[np.float32]:
        """The weight's values; kept between steps while all that are kept stay under 2 GiB."""
        if weight in self._decoded:
            return self._decoded[weight]
        values = weight.decode()
        if sum(v.nbytes for v in self._decoded.values()) + values.nbytes <= 1 << 31:
            self._decoded[weight] = values
        return values

    def count(self, buffer: Buffer) -> int:
        """Live rows of `buffer` in this step."""
        return buffer.shape[0] if buffer.live is None else int(self._arrays[buffer.live][0])

    def live(self, buffer: Buffer) -> Any:
        """The live rows of `buffer` (each plane's, for `q8` planes)."""
        n, array = self.count(buffer), self._arrays[buffer]
        return Q8(array.codes[:n], array.scales[:n], array.sums[:n]) if isinstance(array, Q8) else array[:n]


@dataclass(frozen=True, eq=False)
class Op:
    """One record of a program. Subclasses set `kind`, their fields, and the two NumPy references."""

    kind: ClassVar[str]
    writes: ClassVar[tuple[str, ...]] = ("out",)

    def _buffers(self, wanted: Callable[[str], bool]) -> tuple[Buffer, ...]:
        values = (getattr(self, f.name) for f in fields(self) if wanted(f.name))
        return tuple(v for v in values if isinstance(v, Buffer))

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """Buffers read, in field order."""
        return self._buffers(lambda name: name not in self.writes)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """Buffers written, in field order."""
        return self._buffers(lambda name: name in self.writes)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Weights read, in field order."""
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(v for v in values if isinstance(v, Weight))

    def row_weight_bytes(self) -> int:
        """Weight bytes that a step of one row reads."""
        return sum(w.nbytes for w in self.weights)

    def run_float(self, at: Arrays) -> None:
        """Plain float32 NumPy."""
        raise NotImplementedError

    def run_contract(self, at: Arrays) -> None:
        """The arithmetic contract in NumPy; ops without rounding of their own share the float form."""
        self.run_float(at)
