"""The reference backend: runs each op's NumPy function, in float or in contract mode. Slow, obvious, independent."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from strata.backends.base import Arena, HostStamp
from strata.errors import FaultError
from strata.ops.buffers import NUMPY_DTYPES, Buffer, Weight
from strata.ops.op import Q8, Arrays
from strata.ops.program import Program
from strata.ops.step import Form

Mode = Literal["float", "contract"]


class ReferenceBackend:
    """`float`: exact float32. `contract`: the int8 blocks and orders of docs/contract.md, bit for bit."""

    forms: tuple[Form, ...] = ("step", "chunk")
    runs_ahead = False

    def __init__(self, mode: Mode):
        self.mode = mode
        self.name = "reference" if mode == "float" else "contract"
        self._arrays: dict[Buffer, Any] = {}
        self._decoded: dict[Weight, NDArray[np.float32]] = {}

    def reserve(self, arena_bytes: int, arena: Arena = "step") -> None:
        """Nothing: scratch has arrays of its own."""

    def close(self) -> None:
        """Nothing."""

    def feed(self, ids: Buffer, tokens: Buffer, drafts: Buffer | None = None) -> None:
        """Nothing: programs do not run ahead."""

    def stamp(self) -> HostStamp:
        """Now."""
        return HostStamp()

    def end_prompts(self) -> None:
        """Nothing is held for prompts."""

    def array(self, buffer: Buffer) -> NDArray[Any]:
        """The buffer's array."""
        found: NDArray[Any] = self._place(buffer)
        return found

    def lower(self, program: Program, arena: Arena = "step", own_faults: bool = False) -> "ReferenceReplay":
        """Gives every buffer an array of its own; scratch does not share here, so that aliasing bugs differ."""
        return ReferenceReplay(
            self, program, Arrays({b: self._place(b) for b in program.buffers()}, self._decoded)
        )

    def _place(self, buffer: Buffer) -> Any:
        if buffer not in self._arrays:
            self._arrays[buffer] = self._allocate(buffer)
        return self._arrays[buffer]

    def _allocate(self, buffer: Buffer) -> Any:
        if buffer.data is not None:
            return buffer.data
        if buffer.dtype != "q8":
            return np.zeros(buffer.shape, NUMPY_DTYPES[buffer.dtype])
        if self.mode == "float":
            return np.zeros(buffer.shape, np.float32)
        rows, k = buffer.shape
        return Q8(
            np.zeros((rows, k), np.int8),
            np.zeros((rows, k // 32), np.float32),
            np.zeros((rows, k // 16), np.int16),
        )


class ReferenceReplay:
    """A program and its arrays."""

    def __init__(self, backend: ReferenceBackend, program: Program, arrays: Arrays):
        self._run = "run_float" if backend.mode == "float" else "run_contract"
        self._program, self._arrays = program, arrays

    def peek(self, buffer: Buffer) -> NDArray[Any]:
        """The buffer's array."""
        return np.asarray(self._arrays[buffer])

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Runs ops [begin, end)."""
        for op in self._program.ops[begin:end]:
            try:
                getattr(op, self._run)(self._arrays)
            except FaultError as e:
                raise FaultError(f"{op.kind}: {e}") from None

    def prepare(self, begin: int = 0, end: int | None = None) -> None:
        """Nothing: lowering did all."""

    def submit(self, begin: int = 0, end: int | None = None) -> None:
        """As `run`: nothing is done later."""
        self.run(begin, end)

    def ready(self) -> bool:
        """Always."""
        return True

    def wait(self) -> None:
        """Everything is done."""

    def check(self) -> None:
        """Faults were raised at once."""
