"""Step inputs: the host writes arrays, a replay takes a snapshot of them, and its first node copies that to the device.

Snapshots lie in a ring of page-locked memory, so that the host may write the next step's inputs while a step runs. The
first node counts replays on the device (`turn`), so that it knows its slot of the ring without a parameter.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from strata.backends.cuda.driver import Driver, Launch
from strata.backends.cuda.lower import ints, launch, pointer
from strata.errors import DeviceError
from strata.ops.buffers import NUMPY_DTYPES, Buffer

DEPTH = 16  # snapshots in flight: two replays a step, two steps, parts of a prompt, and room
ALIGNMENT = 64
_THREADS = 256


class StepInputs:
    """One block of `capacity` bytes: on the host as written, DEPTH snapshots, on the device as kernels read it."""

    def __init__(self, driver: Driver, capacity: int):
        self._capacity = capacity
        self._written = np.zeros(capacity, np.uint8)
        self._ring = driver.allocate_host(capacity * DEPTH)
        self._snapshots = self._ring.array.reshape(DEPTH, capacity)
        self._consumed = driver.allocate_host(64)  # i64: replays whose inputs have been copied
        self._device = driver.allocate(capacity)
        self._turn = driver.allocate(64)  # u64 turn, u32 thread blocks that are done
        self._places: dict[Buffer, int] = {}
        self._used = 0
        self._submitted = 0
        self._ids, self._fed = 0, (0, 0)  # address; bytes [begin, end) of the block
        self._drafts = 0, 0  # address, elements

    @classmethod
    def of(cls, driver: Driver, buffers: Sequence[Buffer]) -> Self:
        """A block of just these."""
        block = cls(driver, sum(-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in buffers))
        for buffer in buffers:
            block.place(buffer)
        return block

    def has(self, buffer: Buffer) -> bool:
        """Whether the buffer lies in the block."""
        return buffer in self._places

    def fits(self, buffer: Buffer) -> bool:
        """Whether the block has, or has room for, the buffer."""
        return buffer in self._places or self._used + buffer.nbytes <= self._capacity

    def place(self, buffer: Buffer) -> int:
        """The buffer's offset in the block."""
        if buffer not in self._places:
            self._places[buffer] = self._used
            self._used = -(-(self._used + buffer.nbytes) // ALIGNMENT) * ALIGNMENT
            if self._used > self._capacity:
                raise DeviceError(f"step inputs need {self._used} bytes; {self._capacity} are set aside")
        return self._places[buffer]

    def address(self, buffer: Buffer) -> int:
        """Where kernels read it."""
        return self._device + self.place(buffer)

    def array(self, buffer: Buffer) -> NDArray[Any]:
        """Where the host writes it."""
        at = self.place(buffer)
        flat = self._written[at : at + buffer.nbytes].view(NUMPY_DTYPES[buffer.dtype])
        return flat.reshape(buffer.shape)

    def feed(self, ids: int, tokens: Buffer, drafts: tuple[int, int] = (0, 0)) -> None:
        """SAMPLED in `tokens` stands for what lies in the same place at address `ids`, DRAFTED + i for element i of
        `drafts`, an address and a number of elements."""
        at = self.place(tokens)
        self._ids, self._fed, self._drafts = ids, (at, at + tokens.nbytes), drafts

    def copy_launch(self) -> Launch:
        """The node that begins a replay. Copies all that is placed when it is recorded."""
        words = -(-self._used // 16)
        grid = max(1, min(16, -(-words // _THREADS)))
        args = [pointer(a) for a in (self._ring.address, self._device, self._turn, self._consumed.address)]
        sizes = ints(self._capacity // 16, words, DEPTH, self._fed[0] // 4, self._fed[1] // 4)
        drafts = [pointer(self._drafts[0]), *ints(self._drafts[1])]
        return launch(
            "inputs.cu", "copy_inputs", grid, _THREADS, [*args, pointer(self._ids), *sizes, *drafts]
        )

    def snapshot(self) -> None:
        """Keeps what is written now for the replay that is started next."""
        while self._submitted - int(self._consumed.array.view(np.int64)[0]) >= DEPTH:
            pass  # the oldest snapshot is still to be read; a replay lasts milliseconds at most
        self._snapshots[self._submitted % DEPTH, : self._used] = self._written[: self._used]
        self._submitted += 1
