"""Named memory that op records refer to: buffers of a program, and weights as they lie in the file."""

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strata.quants import Format

DType = Literal["f32", "f16", "i32", "u64", "u8", "i8", "q8"]
Role = Literal["input", "state", "constant", "scratch", "output", "polled"]

NUMPY_DTYPES: dict[str, type[np.generic]] = {
    "f32": np.float32,
    "f16": np.float16,
    "i32": np.int32,
    "u64": np.uint64,
    "u8": np.uint8,
    "i8": np.int8,
}


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory with a shape and a role; identity is the object.

    `input`: the engine writes it before a replay. `state`: lives across steps (KV pools). `constant`: `data` says.
    `output`: read after a replay. `polled`: memory that the host may look at, or write,
    while a device works. `scratch`: has a place in the arena only while the program needs it.
    A `q8` buffer [rows, k] is three planes: codes int8 [rows, k], scales f32 [rows, k/32], sums int16 [rows, k/16].
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType = "f32"
    role: Role = "scratch"
    data: NDArray[np.generic] | None = None
    live: "Buffer | None" = None  # i32 [1]: how many of the rows (first dimension) a step uses
    in_ram: bool = False  # of `state`: a device keeps it in page-locked RAM and works on it there

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        if self.dtype == "q8":
            return sum(plane_bytes(self.shape))
        return prod(self.shape) * np.dtype(NUMPY_DTYPES[self.dtype]).itemsize

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


def plane_bytes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Bytes of the three planes of a `q8` buffer; each is padded to 64 bytes so that planes stay aligned."""
    rows, k = shape
    codes, scales, sums = (-(-n // 64) * 64 for n in (rows * k, rows * (k // 32) * 4, rows * (k // 16) * 2))
    return codes, scales, sums


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor as the file stores it: `data` is raw bytes, rows of `shape[-1]` values in blocks of `format`."""

    name: str
    format: Format
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def is_float(self) -> bool:
        """Whether products keep float32 activations."""
        return self.format.name in ("F32", "F16", "BF16")

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.data.nbytes

    def part(self, i: int) -> "Weight":
        """Matrix i of a stack [parts, n, k], whose data is [parts, bytes]."""
        return Weight(f"{self.name}[{i}]", self.format, self.shape[1:], self.data[i])

    def decode(self) -> NDArray[np.float32]:
        """All values, float32 [shape]."""
        return self.format.decode(self.data).reshape(self.shape)

    def __str__(self) -> str:
        return f"{self.name} {self.format.name}{list(self.shape)}"
