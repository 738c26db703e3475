"""Scratch of single ops of a program, besides the buffers that ops hand each other."""

from dataclasses import dataclass

from strata.backends.cuda.driver import Driver
from strata.backends.cuda.memory import ALIGNMENT, Slabs


@dataclass(frozen=True)
class Scratch:
    """Where a program's scratch lies: buffers from `base` on, that of single ops in `workspace`; `lent`: bytes of
    expert slots that it takes."""

    base: int
    workspace: "Workspace | Meter"
    lent: int = 0


class Meter:
    """In a workspace's place: counts what ops take. `most`: bytes of the op that took most."""

    def __init__(self) -> None:
        self._used = self.most = 0

    def reset(self) -> None:
        """The next op begins."""
        self._used = 0

    def take(self, nbytes: int) -> int:
        """No address, for nothing is launched."""
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.most = max(self.most, self._used)
        return 0

    def counters(self, count: int) -> int:
        """The same."""
        return 0


class Workspace:
    """Memory of single ops: their launches follow one another, so that all ops share one place."""

    def __init__(self, driver: Driver, slab_bytes: int, counters: Slabs | None = None):
        self._driver = driver
        self._counters = counters or Slabs(driver, 1 << 16)
        self._base = self._size = self._used = 0
        self._least = slab_bytes // 4

    def beside(self) -> "Workspace":
        """Another place, for ops of the same device."""
        return Workspace(self._driver, 0, self._counters)

    def put(self, address: int, nbytes: int) -> None:
        """From now on so many bytes there are taken from."""
        self._base, self._size, self._used = address, nbytes, 0

    def grow(self, nbytes: int) -> None:
        """Makes room for an op that takes so much; places that were handed out before stay."""
        if nbytes > self._size:
            self.put(self._driver.allocate(nbytes), nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes that the largest op may have."""
        return self._size

    def reset(self) -> None:
        """The next op begins."""
        self._used = 0

    def take(self, nbytes: int) -> int:
        """So many bytes until the next reset."""
        wanted = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if self._used + wanted > self._size:  # what was handed out before stays: it is recorded
            self._size = max(2 * self._size, wanted, self._least)
            self._base, self._used = self._driver.allocate(self._size), 0
        address, self._used = self._base + self._used, self._used + wanted
        return address

    def counters(self, count: int) -> int:
        """So many zeroed uint32, for one op for good."""
        return self._counters.take(4 * count)
