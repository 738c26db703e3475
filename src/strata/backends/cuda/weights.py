"""Weights on the device: the file's bytes as they are, or re-laid to planes by a kernel while they are loaded."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends.cuda.driver import Driver, Launch
from strata.backends.cuda.lower import FAR, FILE, PACKED, launch, pointer, type_macro
from strata.backends.cuda.memory import ALIGNMENT, Slabs
from strata.ops.buffers import Weight
from strata.quants import Format

# Formats whose products read the file's blocks; the others' read planes (kernels/packed*.cuh).
UNPACKED_TYPES = frozenset(("IQ1_S", "IQ1_M", "TQ1_0"))
STAGE_BYTES = 32 << 20  # of the file, on their way to planes
_THREADS = 128


def is_packed(fmt: Format) -> bool:
    """Whether products read planes of the format."""
    return fmt.quantised and fmt.name not in UNPACKED_TYPES


class WeightStore:
    """Places each weight once, at its first use; several programs share it."""

    def __init__(self, driver: Driver, slab_bytes: int):
        self._driver = driver
        self._slabs = Slabs(driver, slab_bytes)
        self._placed: dict[tuple[Weight, str], int] = {}
        self._tables: dict[Weight, int] = {}
        self._stage = 0
        self.far = False  # whether tables of rows stay in RAM

    @property
    def nbytes(self) -> int:
        """Device memory taken."""
        return self._slabs.nbytes

    def expect(self, nbytes: int) -> None:
        """Room for all weights in one piece: kernels ask early for what comes next in memory (ahead.py)."""
        self._slabs.expect(nbytes)

    def address(self, weight: Weight, layout: str) -> int:
        """Address of the weight in a layout of `lower`: FILE, PACKED or FAR."""
        if layout == FAR and self.far:
            if (weight, FAR) not in self._placed:
                memory = self._driver.allocate_host(weight.data.nbytes)
                memory.array[:] = weight.data.reshape(-1)
                self._placed[weight, FAR] = memory.address
            return self._placed[weight, FAR]
        if layout == FAR or not is_packed(weight.format):
            layout = FILE
        key = weight, layout
        if key not in self._placed:
            n, k = weight.shape[-2:] if len(weight.shape) > 1 else (1, weight.shape[-1])
            self._placed[key] = self._write(
                self._slabs.take(weight.data.nbytes), weight.data, weight.format, n, k, layout
            )
        return self._placed[key]

    def lies_at(self, weight: Weight, address: int) -> None:
        """The file's bytes of the weight lie there for kernels; comes before its first use."""
        self._placed[weight, FILE] = address

    def expert_table(self, weight: Weight) -> int:
        """Address of uint64 [num_experts]: where each expert of a stack lies, packed where its format is."""
        if weight not in self._tables:
            experts, n, k = weight.shape
            layout = PACKED if is_packed(weight.format) else FILE
            each = weight.data.nbytes // experts
            stride = -(-each // ALIGNMENT) * ALIGNMENT if layout == PACKED else each
            first = self._slabs.take(stride * experts)
            self._write(first, weight.data, weight.format, n, k, layout, experts, stride)
            self._tables[weight] = self._slabs.take(8 * experts)
            addresses = first + stride * np.arange(experts, dtype=np.uint64)
            self._driver.upload(self._tables[weight], addresses.astype(np.uint64))
        return self._tables[weight]

    def _write(
        self,
        address: int,
        data: NDArray[np.uint8],
        fmt: Format,
        n: int,
        k: int,
        layout: str,
        matrices: int = 1,
        stride: int = 0,
    ) -> int:
        """Matrices [n, k] that lie one after another in `data`, to an address, `stride` bytes apart; returns it."""
        if layout == FILE:
            self._driver.upload(address, np.ascontiguousarray(data))
            return address
        if not self._stage:
            self._stage = self._driver.allocate(STAGE_BYTES)
        flat = data.reshape(-1)
        blocks = n * k // fmt.block_values
        at_once = STAGE_BYTES // fmt.block_bytes
        for first in range(0, matrices * blocks, at_once):
            count = min(at_once, matrices * blocks - first)
            part = flat[first * fmt.block_bytes : (first + count) * fmt.block_bytes]
            self._driver.upload(self._stage, np.ascontiguousarray(part))
            self._driver.launch(_pack(fmt, self._stage, address, first, count, blocks, stride))
            self._driver.synchronize()
        return address

    def rewrite(self, weight: Weight, data: NDArray[np.uint8]) -> None:
        """Other values for a matrix that is there, for measurements."""
        layout, (n, k) = PACKED if is_packed(weight.format) else FILE, weight.shape
        self._write(self.address(weight, layout), data, weight.format, n, k, layout)


def _pack(fmt: Format, source: int, target: int, first: int, count: int, blocks: int, stride: int) -> Launch:
    """Re-lays file blocks [first, first + count) of matrices of `blocks` each."""
    args: list[Any] = [pointer(source), pointer(target), *map(np.int64, (first, count, blocks, stride))]
    return launch(
        "pack.cu", "pack", -(-count // _THREADS), _THREADS, args, macros=[type_macro(fmt)], dependent=False
    )
