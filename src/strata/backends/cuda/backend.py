"""Memory and lowering of the CUDA backend."""

from itertools import islice
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from strata import log
from strata.backends.base import Arena
from strata.backends.cuda import (  # noqa: F401  (most register their rules)
    ahead,
    fuse_attention,
    fuse_dense,
    fuse_sublayer,
    lower_attention,
    lower_dense,
    lower_drafts,
    lower_heads,
    lower_linear,
    lower_moe,
    lower_sample,
    lower_sparse,
    lower_state,
    summary,
)
from strata.backends.cuda.driver import Driver, HostMemory, Launch
from strata.backends.cuda.fuse import Lowering, groups, plan
from strata.backends.cuda.inputs import StepInputs
from strata.backends.cuda.lower import Context, lower
from strata.backends.cuda.memory import DeviceArray, Slabs
from strata.backends.cuda.replay import CudaReplay, Part
from strata.backends.cuda.weights import WeightStore
from strata.ops.buffers import NUMPY_DTYPES, Buffer, Weight, plane_bytes
from strata.ops.program import Program
from strata.ops.step import Form

_INPUT_BYTES = 1 << 20
_SLAB_BYTES = 64 << 20


class CudaBackend:
    """Owns one device's memory: weights, states, arenas that programs share in turn, and step inputs."""

    name = "cuda"
    runs_ahead = True
    forms: tuple[Form, ...] = ("step", "chunk")

    def __init__(
        self,
        driver: Driver,
        slab_bytes: int = _SLAB_BYTES,
        input_bytes: int = _INPUT_BYTES,
        fused: bool = True,
    ):
        self.driver, self._fused = driver, fused
        self._inputs = [StepInputs(driver, input_bytes)]  # then blocks of what only chunks read
        self._states = Slabs(driver, slab_bytes)
        self._weights = WeightStore(driver, slab_bytes)
        self._arrays: dict[Buffer, NDArray[Any]] = {}
        self._addresses: dict[Buffer, int] = {}
        self._arenas: dict[Arena, tuple[int, int]] = {}  # address, bytes
        self._workspace = Workspace(driver, slab_bytes)
        self._faults = {arena: driver.allocate_host(128) for arena in get_args(Arena)}
        self._other_faults = driver.allocate_host(128)  # of programs whose faults are nobody else's
        self._told = False  # whether the log has the kernels

    def array(self, buffer: Buffer) -> NDArray[Any]:
        """A host array of a step input or of polled memory; of anything else a DeviceArray, which copies."""
        if (block := self._block(buffer)) is not None:
            return block.array(buffer)
        self._address(buffer)
        return self._arrays[buffer]

    def _block(self, buffer: Buffer) -> StepInputs | None:
        """The block of step inputs that has the buffer; the first where it has room."""
        if buffer.role != "input":
            return None
        held = next((block for block in self._inputs if block.has(buffer)), self._inputs[0])
        return held if held.fits(buffer) else None

    def feed(self, ids: Buffer, tokens: Buffer) -> None:
        """The copy of step inputs puts elements of `ids` in the place of SAMPLED in `tokens`."""
        self._inputs[0].feed(self._address(ids), tokens)

    def reserve(self, arena_bytes: int, arena: Arena = "step") -> None:
        """Makes an arena large enough for every program that will be lowered into it; its addresses are fixed then."""
        if self._arenas.get(arena, (0, 0))[1] < arena_bytes:
            self._arenas[arena] = self.driver.allocate(arena_bytes), arena_bytes

    def expert_table(self, weight: Weight) -> DeviceArray:
        """Where kernels look up the experts of a stack, uint64 [num_experts]; entries may change between steps."""
        address = self._weights.expert_table(weight)
        return DeviceArray(self.driver, address, (weight.shape[0],), np.uint64)

    def lower(self, program: Program, arena: Arena = "step", own_faults: bool = False) -> CudaReplay:
        """Launches with absolute addresses, compiled and recorded."""
        assert self._arenas.get(arena, (0, 0))[1] >= program.arena_bytes, (
            f"reserve() arena {arena} before lowering"
        )
        if arena == "chunk":
            self._set_aside(program)
        # a chunk's parts end after layers: no group may reach across
        found = groups(program, self._fused, program.marks.values() if arena == "chunk" else ())
        offsets, arena_bytes = plan(program, found)
        self.reserve(
            arena_bytes, arena
        )  # groups hold their buffers longer; programs lowered before keep theirs
        faults = self._other_faults if own_faults else self._faults[arena]
        context = self._context(program, arena, offsets, faults)

        def launches(lowering: Lowering) -> list[Launch]:
            self._workspace.reset()
            return lowering(context)

        lowered = [launches(g.launches) for g in found]
        nodes = iter(ahead.ask_ahead([node for part in lowered for node in part], ahead.PLAN))
        parts = [
            Part(g.begin, g.end, list(islice(nodes, len(part))))
            for g, part in zip(found, lowered, strict=True)
        ]

        def alone(i: int) -> list[Launch]:
            return launches(lambda at: lower(program.ops[i], at))

        blocks = self._inputs if arena == "chunk" else self._inputs[:1]
        replay = CudaReplay(self.driver, program, parts, alone, tuple(blocks), faults)
        if program.bucket == 1 and "layer.0" in program.marks and not self._told:
            self._told = True
            self._tell(program, replay)
        return replay

    def _set_aside(self, program: Program) -> None:
        """A block for the inputs that steps do not read, so that they do not copy it."""
        inputs = dict.fromkeys(b for b in program.buffers() if b.role == "input")
        own = [b for b in inputs if not any(block.has(b) for block in self._inputs)]
        if own:
            self._inputs.append(StepInputs.of(self.driver, own))

    def _tell(self, program: Program, replay: CudaReplay) -> None:
        """The kernels of a step of one row (debug), and fast paths that are off."""
        logger, nodes = log.logger(__name__), replay.launches
        logger.info("%s: %d nodes a step of one row", self.driver.properties.name, len(nodes))
        for line in summary.kernels(nodes):
            logger.debug("%s", line)
        for line in summary.paths_off(program.ops, self.driver.properties):
            logger.info("off: %s", line)

    def _context(
        self, program: Program, arena: Arena, offsets: dict[Buffer, int], faults: HostMemory
    ) -> Context:
        base = self._arenas.get(arena, (0, 0))[0]

        def buffer_address(buffer: Buffer) -> int:
            if buffer.role == "scratch":
                return base + offsets[buffer]
            return self._address(buffer)

        def planes(buffer: Buffer) -> tuple[int, int, int]:
            codes, scales, _ = plane_bytes(buffer.shape)
            at = buffer_address(buffer)
            return at, at + codes, at + codes + scales

        return Context(
            self.driver.properties,
            program.bucket,
            buffer_address,
            planes,
            self._weights.address,
            self._weights.expert_table,
            self._workspace.take,
            self._workspace.counters,
            faults.address,
        )

    def _address(self, buffer: Buffer) -> int:
        """Address of a buffer that is not scratch; placed at the first call."""
        if (block := self._block(buffer)) is not None:
            return block.address(buffer)
        if buffer not in self._addresses:
            self._addresses[buffer], self._arrays[buffer] = self._place(buffer)
        return self._addresses[buffer]

    def _place(self, buffer: Buffer) -> tuple[int, Any]:
        dtype = NUMPY_DTYPES[buffer.dtype]
        if buffer.role in ("input", "polled"):
            host = self.driver.allocate_host(buffer.nbytes)
            return host.address, host.array.view(dtype).reshape(buffer.shape)
        address = self._states.take(buffer.nbytes)
        if buffer.data is not None:
            self.driver.upload(address, np.ascontiguousarray(buffer.data))
        return address, DeviceArray(self.driver, address, buffer.shape, dtype)


class Workspace:
    """Memory of single ops: their launches follow one another, so that all ops share one place."""

    def __init__(self, driver: Driver, slab_bytes: int):
        self._driver = driver
        self._counters = Slabs(driver, 1 << 16)
        self._base = self._size = self._used = 0
        self._least = slab_bytes // 4

    def reset(self) -> None:
        """The next op begins."""
        self._used = 0

    def take(self, nbytes: int) -> int:
        """So many bytes until the next reset."""
        wanted = -(-nbytes // 256) * 256
        if self._used + wanted > self._size:  # what was handed out before stays: it is recorded
            self._size = max(2 * self._size, wanted, self._least)
            self._base, self._used = self._driver.allocate(self._size), 0
        address, self._used = self._base + self._used, self._used + wanted
        return address

    def counters(self, count: int) -> int:
        """So many zeroed uint32, for one op for good."""
        return self._counters.take(4 * count)
