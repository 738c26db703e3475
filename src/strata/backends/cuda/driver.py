"""What the CUDA backend asks of a device: memory, compiled kernels, launches, recorded graphs.

`nvidia.NvidiaDriver` is a GPU; `tests/emulate` compiles the same kernels for the processor behind the same protocol.
Addresses are plain integers, valid in kernels; those of page-locked memory are valid on the host too.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arg = (
    np.uint64 | np.int64 | np.int32 | np.uint32 | np.float32
)  # addresses are uint64; the width is the parameter's


COMPUTE, COPIES = 0, 1  # streams: all programs run on the first; copies beside them may take the second


@dataclass(frozen=True)
class Source:
    """A file of `kernels/`, compiled with these macros: one image."""

    file: str
    macros: tuple[tuple[str, str | int], ...] = ()

    @property
    def text(self) -> str:
        """What the compiler is given; kernels/ and native/include are its include path."""
        return "".join(f"#define {k} {v}\n" for k, v in self.macros) + f'#include "{self.file}"\n'

    def __str__(self) -> str:
        macros = " ".join(f"{k}={v}" for k, v in self.macros)
        return f"{self.file} {macros}".rstrip()


@dataclass(frozen=True)
class Kernel:
    """An `extern "C" __global__` function of a source."""

    source: Source
    entry: str

    def __str__(self) -> str:
        return f"{self.entry} of {self.source}"


@dataclass(frozen=True)
class Launch:
    """One node of a graph. `args` are the kernel's parameters in order."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: int  # threads; every kernel uses one dimension
    args: tuple[Arg, ...]
    shared: int = 0  # bytes of dynamic shared memory
    dependent: bool = True  # programmatic dependent launch: the kernel itself waits for its predecessor
    cluster: int = 1  # thread blocks a cluster
    reads: tuple[tuple[int, int], ...] = ()  # weights that every replay reads: address, bytes
    _: KW_ONLY
    beside: bool = False  # runs beside the launches after it, up to the next one that joins
    joins: bool = False  # waits for those that run beside
    ahead: bool = False  # the last two of `args` are memory to ask for early (ahead.py): address, bytes


@dataclass(frozen=True)
class DeviceProperties:
    """What planning needs to know."""

    name: str
    arch: str  # sm_90
    multiprocessors: int
    memory: int  # bytes in all
    shared: int  # bytes of shared memory a thread block may have
    l2: int  # bytes
    bandwidth: float = 0.0  # bytes a second of device memory at its clock; 0 where unknown


@dataclass(frozen=True)
class HostMemory:
    """Page-locked host memory: `array` uint8 [nbytes] for the host, `address` for kernels."""

    address: int
    array: NDArray[np.uint8]


class Driver(Protocol):
    """One device with two streams; what says nothing of streams is about COMPUTE. Everything raises DeviceError with
    what failed; after one out of a step nothing but `close` is of use."""

    properties: DeviceProperties

    def close(self) -> None:
        """Gives back all that it holds; raises nothing, and nothing may be used afterwards."""

    def allocate(self, nbytes: int) -> int:
        """Zeroed device memory on a 256-byte border; lives as long as the driver."""

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Zeroed page-locked memory that kernels can read and write in place."""

    def register(self, address: int, nbytes: int) -> int:
        """Page-locks host memory that exists, so that kernels can read it in place; its address for kernels."""

    def unregister(self, address: int) -> None:
        """Gives back what `register` took, before the memory goes."""

    def free_memory(self) -> int:
        """Bytes of device memory that can still be allocated."""

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copies a C-contiguous array to the device; has arrived when it returns."""

    def download(self, address: int, out: NDArray[Any]) -> None:
        """Fills a C-contiguous array from the device, after everything that was started before."""

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Compiles kernels that are not yet there (several at a time), so that recording does not wait for each."""

    def record(self, launches: Sequence[Launch], stream: int = COMPUTE) -> Any:
        """A graph of the launches, each after the one before it, to be replayed on the stream; nothing runs."""

    def replay(self, graph: Any, stream: int = COMPUTE) -> None:
        """Starts a graph after everything that was started on the stream before; does not wait."""

    def launch(self, launch: Launch) -> None:
        """Starts one kernel outside a graph (loading, tests)."""

    def synchronize(self) -> None:
        """Waits until everything that was started is done."""

    def event(self, timed: bool = False) -> Any:
        """An event that can be signalled again and again; `timed`: for `elapsed`."""

    def signal(self, event: Any, stream: int = COMPUTE) -> None:
        """The event passes after everything that was started on the stream so far."""

    def wait_on(self, event: Any, stream: int = COMPUTE) -> None:
        """What is started on the stream from now on begins after the event's last signal; the host does not wait."""

    def wait(self, event: Any) -> None:
        """Waits until the event's last signal has passed."""

    def passed(self, event: Any) -> bool:
        """Whether the event's last signal has passed."""

    def mark(self) -> Any:
        """An event after everything that was started so far."""

    def elapsed(self, first: Any, last: Any) -> float:
        """Microseconds between two events that have passed."""

    def timeline(self, launches: Sequence[Launch], repeats: int) -> list[float]:
        """Microseconds of each launch in a graph with an event after each: the median of some replays. Launches do not
        overlap there, so that the sum is more than a replay takes."""
