"""Memory of the CUDA backend: slabs that only grow while loading, and arrays on the device or in page-locked memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from strata.backends.cuda.driver import Driver, HostMemory

ALIGNMENT = 256


class Slabs:
    """Hands out device memory from slabs of at least `slab_bytes`; nothing is given back. Each piece comes from where
    it leaves least: in order, a tenth of the target's weights and a fifth of its states were lost at ends of slabs."""

    def __init__(self, driver: Driver, slab_bytes: int):
        self._driver, self._slab_bytes = driver, slab_bytes
        self._left: list[tuple[int, int]] = []  # bytes, address
        self.nbytes = 0  # allocated in all

    def expect(self, nbytes: int) -> None:
        """Makes one slab of so much: what is taken of it lies in the order in which it is asked for."""
        self._left.append((nbytes, self._driver.allocate(nbytes)))
        self.nbytes += nbytes

    def take(self, nbytes: int) -> int:
        """Address of `nbytes` zeroed bytes on an ALIGNMENT border."""
        wanted = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        if not any(size >= wanted for size, _ in self._left):
            self.expect(max(wanted, self._slab_bytes))
        size, address = min(left for left in self._left if left[0] >= wanted)
        self._left.remove((size, address))
        if size > wanted:
            self._left.append((size - wanted, address + wanted))
        return address


class DeviceArray:
    """An array on the device. Indexing by integers, slices and lists on the two leading axes copies from or to it."""

    def __init__(self, driver: Driver, address: int, shape: tuple[int, ...], dtype: DTypeLike):
        self._driver, self.address, self.shape, self.dtype = driver, address, shape, np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        out = self[:]
        return out if dtype is None else out.astype(dtype)

    def copy(self) -> NDArray[Any]:
        """The whole array on the host."""
        return self[:]

    def fill(self, value: Any) -> None:
        """Sets every element."""
        self[:] = value

    def __getitem__(self, index: Any) -> NDArray[Any]:
        shape, runs, tail = self._plan(index)
        out = np.empty(shape, self.dtype)
        self._download(runs, out)
        return out if tail is None else out[tail].copy()

    def read_into(self, index: Any, out: NDArray[Any]) -> None:
        """`out[...] = self[index]` without memory between; `out`: contiguous, of the result's shape."""
        shape, runs, tail = self._plan(index)
        assert tail is None and out.shape == shape and out.dtype == self.dtype and out.flags.c_contiguous
        self._download(runs, out)

    def _download(self, runs: list[tuple[int, int]], out: NDArray[Any]) -> None:
        flat, at = out.reshape(-1), 0
        for offset, count in runs:
            self._driver.download(self.address + offset * self.dtype.itemsize, flat[at : at + count])
            at += count

    def __setitem__(self, index: Any, value: Any) -> None:
        shape, runs, tail = self._plan(index)
        if tail is not None:
            raise NotImplementedError("a part of rows can be read from the device, not written")
        flat = np.ascontiguousarray(np.broadcast_to(np.asarray(value, self.dtype), shape)).reshape(-1)
        at = 0
        for offset, count in runs:
            self._driver.upload(self.address + offset * self.dtype.itemsize, flat[at : at + count])
            at += count

    def _plan(self, index: Any) -> tuple[tuple[int, ...], list[tuple[int, int]], Any]:
        """Shape of the result, its runs of elements (offset, count) in order, and what indexes the copy further."""
        parts = index if isinstance(index, tuple) else (index,)
        lead, tail = parts[:2], parts[2:]
        picks = [np.arange(n)[p] for n, p in zip(self.shape, lead, strict=False)]
        rest = self.shape[len(lead) :]
        size = int(np.prod(rest, dtype=np.int64))
        if len(picks) == 2:
            offsets = (np.asarray(picks[0])[..., None] * self.shape[1] + np.asarray(picks[1])).reshape(-1)
            shape = (*np.shape(picks[0]), *np.shape(picks[1]), *rest)
        else:
            offsets, shape = np.asarray(picks[0]).reshape(-1), (*np.shape(picks[0]), *rest)
        further = (*(slice(None) for _ in range(len(shape) - len(rest))), *tail) if tail else None
        return shape, list(_runs(offsets, size)), further


class HostArray(DeviceArray):
    """The same of page-locked memory that kernels write in place: what is read or written waits for them first."""

    def __init__(self, driver: Driver, memory: HostMemory, shape: tuple[int, ...], dtype: DTypeLike):
        super().__init__(driver, memory.address, shape, dtype)
        self._memory = memory.array.view(dtype).reshape(shape)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        self._driver.synchronize()
        return np.array(self._memory[index])

    def read_into(self, index: Any, out: NDArray[Any]) -> None:
        self._driver.synchronize()
        out[...] = self._memory[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._driver.synchronize()
        self._memory[index] = value


def _runs(offsets: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Neighbouring pieces of `size` elements joined."""
    if len(offsets) == 0 or size == 0:
        return
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    for part in np.split(offsets, breaks):
        yield int(part[0]) * size, len(part) * size
