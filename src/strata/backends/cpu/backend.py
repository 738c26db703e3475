"""Memory and replay of the CPU backend."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata import _native
from strata.backends.base import Arena, HostStamp, raise_fault
from strata.backends.cpu import lower_drafts, lower_mixers, lower_recurrent  # noqa: F401  (they register their rules)
from strata.backends.cpu.lower import Addresses, lower
from strata.backends.cpu.tiers import TierLowering, Tiers
from strata.errors import UnsupportedError
from strata.ops.buffers import NUMPY_DTYPES, Buffer, Weight, plane_bytes
from strata.ops.program import Program
from strata.ops.step import Form


class CpuBackend:
    """Owns the thread pool, one array per persistent buffer, and arenas that programs share in turn."""

    name = "cpu"
    runs_ahead = False
    forms: tuple[Form, ...] = ("step", "chunk")

    def __init__(
        self,
        threads: int,
        isa: str = "auto",
        cpus: list[int] | None = None,
        tiers: Tiers | None = None,
    ):
        if isa != "auto":
            if isa not in _native.isa_levels():
                raise UnsupportedError(
                    f"--isa is {isa}; this processor runs {', '.join(_native.isa_levels())}"
                )
            _native.set_isa(isa)
        self._pool = _native.ThreadPool(threads, cpus or [])
        self._arrays: dict[Buffer, NDArray[Any]] = {}
        self._arenas: dict[Arena, NDArray[np.uint8]] = {}
        self._tiers = tiers
        self._expert_tables: dict[Weight, NDArray[np.uint64]] = {}
        if tiers is not None and tiers.experts is not None:
            self._expert_tables.update(tiers.experts.tables)

    def feed(self, ids: Buffer, tokens: Buffer, drafts: Buffer | None = None) -> None:
        """Nothing: programs do not run ahead."""

    def stamp(self) -> HostStamp:
        """Now."""
        return HostStamp()

    def end_prompts(self) -> None:
        """Nothing is held for prompts."""

    def close(self) -> None:
        """Nothing: memory goes with the last who holds it."""

    def array(self, buffer: Buffer) -> NDArray[Any]:
        """The array behind an input, state, constant or output buffer."""
        if buffer not in self._arrays:
            self._arrays[buffer] = (
                _aligned(buffer) if buffer.data is None else np.ascontiguousarray(buffer.data)
            )
        return self._arrays[buffer]

    def adopt(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """From now on the buffer lies there; comes before anything of it is lowered."""
        self._arrays[buffer] = array

    def expert_table(self, weight: Weight) -> NDArray[np.uint64]:
        """Where kernels look up the experts of a stack, uint64 [num_experts]; entries may change between steps."""
        if weight not in self._expert_tables:
            first, (step, _) = weight.data.ctypes.data, weight.data.strides
            addresses = first + step * np.arange(weight.shape[0], dtype=np.uint64)
            self._expert_tables[weight] = addresses.astype(np.uint64)
        return self._expert_tables[weight]

    def reserve(self, arena_bytes: int, arena: Arena = "step") -> None:
        """Makes an arena large enough for every program that will be lowered into it; its addresses are fixed then."""
        held = self._arenas.get(arena)
        if held is None or held.nbytes < arena_bytes + 64:
            self._arenas[arena] = np.zeros(arena_bytes + 64, np.uint8)

    def lower(self, program: Program, arena: Arena = "step", own_faults: bool = False) -> "CpuReplay":
        """Native records with absolute addresses."""
        memory = self._arenas.get(arena)
        assert memory is not None and memory.nbytes >= program.arena_bytes + 64, (
            f"reserve() arena {arena} first"
        )
        base = -(-memory.ctypes.data // 64) * 64

        def buffer_address(buffer: Buffer) -> int:
            return (
                base + program.offsets[buffer] if buffer.role == "scratch" else self.array(buffer).ctypes.data
            )

        def planes(buffer: Buffer) -> tuple[int, int, int]:
            codes, scales, _ = plane_bytes(buffer.shape)
            at = buffer_address(buffer)
            return at, at + codes, at + codes + scales

        def weight_address(weight: Weight) -> int:
            moved = None if self._tiers is None else self._tiers.resident
            return (weight.data if moved is None else moved(weight)).ctypes.data

        def expert_table(weight: Weight) -> int:
            return self.expert_table(weight).ctypes.data

        at = Addresses(buffer_address, planes, weight_address, expert_table)
        native = _native.Program(self._pool)
        begins = self._add_ops(program, native, at)
        return CpuReplay(program, begins, self._runner(native), memory, base, self._tiers)

    def _tier_lowering(self, program: Program, at: Addresses) -> TierLowering | None:
        """What lowers the ops of a program whose weights are not all in the file's map."""
        return None if self._tiers is None else TierLowering(self._tiers, self._pool, program, at)

    def _runner(self, native: _native.Program) -> Callable[[int, int], int]:
        """What replays a range of records and returns fault bits."""
        return native.run

    def _add_ops(self, program: Program, native: _native.Program, at: Addresses) -> list[int]:
        """Appends every op's records; where each op's begin, and the end."""
        tiered = self._tier_lowering(program, at)
        begins = []
        for op in program.ops:
            begins.append(len(native))
            if tiered is not None:
                tiered.add(native, op)
            else:
                native.add(*lower(op, at))
        return [*begins, len(native)]


class CpuReplay:
    """A lowered program; keeps the arena and the weights' maps alive."""

    def __init__(
        self,
        program: Program,
        begins: list[int],
        run: Callable[[int, int], int],
        arena: NDArray[np.uint8],
        base: int,
        tiers: Tiers | None,
    ):
        self._program, self._begins, self._run = program, begins, run
        self._arena, self._tiers = arena, tiers
        self._begin = base - arena.ctypes.data

    def peek(self, buffer: Buffer) -> NDArray[Any]:
        """A view into the arena."""
        at = self._begin + self._program.offsets[buffer]
        raw = self._arena[at : at + buffer.nbytes]
        return raw.view(NUMPY_DTYPES[buffer.dtype]).reshape(buffer.shape)

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """One native call for ops [begin, end)."""
        fault = self._run(self._begins[begin], self._begins[len(self._program) if end is None else end])
        if fault:
            raise_fault(fault, self._program, "" if self._tiers is None else self._tiers.failure())

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


def _aligned(buffer: Buffer) -> NDArray[Any]:
    """Zeroed memory on a 64-byte border."""
    raw = np.zeros(buffer.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + buffer.nbytes].view(NUMPY_DTYPES[buffer.dtype]).reshape(buffer.shape)
