"""Memory and lowering of the CUDA backend."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import prod
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from strata import _native, log
from strata.backends.base import Arena
from strata.backends.cpu.tiers import ExpertTiers
from strata.backends.cuda import (  # noqa: F401  (most register their rules)
    ahead,
    fuse_attention,
    fuse_dense,
    fuse_drafts,
    fuse_prompt,
    fuse_sublayer,
    lower_attention,
    lower_dense,
    lower_drafts,
    lower_fetch,
    lower_heads,
    lower_linear,
    lower_moe,
    lower_sample,
    lower_sparse,
    lower_state,
    summary,
)
from strata.backends.cuda.chunk_experts import around_experts, nothing
from strata.backends.cuda.chunk_share import SHARED_ROWS, ChunkShare
from strata.backends.cuda.clock import Clock, EventStamp
from strata.backends.cuda.driver import Driver, HostMemory, Launch
from strata.backends.cuda.fuse import Group, Lowering, groups, plan
from strata.backends.cuda.fuse_experts import ROWS
from strata.backends.cuda.inputs import StepInputs
from strata.backends.cuda.kv_stage import CHOOSING_ROWS, KvStage, StagedChunk, staged_fetch
from strata.backends.cuda.lower import Context, TableBox, lower
from strata.backends.cuda.measure import measure
from strata.backends.cuda.memory import ALIGNMENT, DeviceArray, HostArray, Slabs
from strata.backends.cuda.prompt_experts import NARROW_ROWS
from strata.backends.cuda.replay import CudaReplay, Part
from strata.backends.cuda.tables import Asked, Tables
from strata.backends.cuda.tier import ExpertTier, TierOptions
from strata.backends.cuda.weights import WeightStore
from strata.backends.cuda.workers import MailboxWorkers
from strata.backends.cuda.workspace import Meter, Scratch, Workspace
from strata.hw import Gpu
from strata.ops.buffers import NUMPY_DTYPES, Buffer, Weight, plane_bytes
from strata.ops.experts import ExpertGateUp
from strata.ops.program import Program
from strata.ops.step import Form

_INPUT_BYTES = 1 << 20
_SLAB_BYTES = 64 << 20
OWN_ROWS = 256  # of chunk programs with scratch of their own: short prompts leave the expert slots alone


class CudaBackend:
    """Owns one device's memory: weights, states, arenas that programs share in turn, and step inputs."""

    name = "cuda"
    runs_ahead = True
    few_rows = ROWS  # of a model with routed experts: a step of more takes longer than two of half as many
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
        self._clock = Clock(driver)
        self._tables = Tables(driver, {}, self._weights)
        self._other_faults = driver.allocate_host(128)  # of programs whose faults are nobody else's
        self._told = False  # whether the log has the kernels
        self.tier: ExpertTier | None = None  # None: all experts lie in the GPU's memory
        self._stage: KvStage | None = None  # of chunks whose cells spill

    @property
    def gpu(self) -> Gpu:
        """What a plan is made for."""
        properties = self.driver.properties
        return Gpu(properties.name, properties.memory, self.driver.free_memory())

    def stamp(self) -> EventStamp:
        """A moment on the device's stream."""
        return self._clock.stamp()

    @property
    def prompt_counts(self) -> dict[str, int]:
        """Experts that prompts had copied, and their bytes."""
        return {} if self.tier is None or self.tier.prompts is None else self.tier.prompts.counts

    def end_prompts(self) -> None:
        """Experts may move again, and come back where chunks had their scratch."""
        if self.tier is None:
            return
        if self._stage is not None and self.tier.lending.lent:
            self._stage.settle()  # before experts come to where it lies
        self.tier.end_prompts()

    def close(self) -> None:
        """Gives the device back; who polls memory that goes with it ends first: workers, stores of tables."""
        if self.tier is not None:
            self.tier.close()
        self._tables.close()
        self.driver.close()

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

    def feed(self, ids: Buffer, tokens: Buffer, drafts: Buffer | None = None) -> None:
        """The copy of step inputs puts what SAMPLED and DRAFTED stand for in their place in `tokens`."""
        drafted = (0, 0) if drafts is None else (self._address(drafts), prod(drafts.shape))
        self._inputs[0].feed(self._address(ids), tokens, drafted)

    def reserve(self, arena_bytes: int, arena: Arena = "step") -> None:
        """Nothing: programs tell when they are lowered, the largest first. Groups may hold buffers longer than ops do,
        and expert slots may lend chunks theirs."""

    def _allocate(self, arena_bytes: int, arena: Arena) -> None:
        if self._arenas.get(arena, (0, 0))[1] < arena_bytes:
            self._arenas[arena] = self.driver.allocate(arena_bytes), arena_bytes

    def expert_table(self, weight: Weight) -> DeviceArray:
        """Where kernels look up the experts of a stack, uint64 [num_experts]; entries may change between steps."""
        address = self._expert_table(weight)
        return DeviceArray(self.driver, address, (weight.shape[0],), np.uint64)

    def expect_weights(self, nbytes: int) -> None:
        """So many bytes of weights will be placed; comes before programs are lowered."""
        self._weights.expect(nbytes)

    def ask_for_rows(self, stores: Mapping[Weight, _native.NgramStore]) -> None:
        """Rows of these tables come from their stores; comes before programs are lowered."""
        self._tables = Tables(self.driver, stores, self._weights)

    def hold_experts(self, experts: ExpertTiers, options: TierOptions) -> None:
        """From now on these experts lie in RAM and in slots; comes before programs are lowered."""
        self._weights.far = True
        faults = self._faults["step"].address, self._faults["chunk"].address
        self.tier = ExpertTier(self.driver, experts, options, faults)

    @property
    def device(self) -> _native.GpuDevice | None:
        """The native device of experts in tiers; None: there are none."""
        return None if self.tier is None else self.tier.device

    @property
    def num_experts(self) -> int:
        """Experts of a layer in tiers."""
        return 0 if self.tier is None else self.tier.num_experts

    def fill(self, experts: Iterable[tuple[int, int]]) -> int:
        """Promotes (layer, expert) in turn into free slots, and waits; returns how many. Only while nothing runs."""
        return 0 if self.tier is None else self.tier.fill(experts)

    def lower(self, program: Program, arena: Arena = "step", own_faults: bool = False) -> CudaReplay:
        """Launches with absolute addresses, compiled and recorded."""
        if arena == "chunk":
            self._set_aside(program)
        elif self.tier is not None:
            self.tier.learn(program)
        found = groups(program, self._fused, self._borders(program, arena))
        offsets, arena_bytes = plan(program, found)
        asked = self._tables.boxes(program, lambda: self._workspace.counters(1))
        staged = self._staged(program, arena)
        scratch = self._scratch(program, arena, found, offsets, arena_bytes, asked, staged)
        faults = self._other_faults if own_faults else self._faults[arena]
        context = self._context(program, arena, offsets, scratch, asked, faults, staged)

        def launches(lowering: Lowering) -> list[Launch]:
            scratch.workspace.reset()
            return lowering(context)

        lowered = [launches(g.launches) for g in found]
        experts = self._expert_ops(program) if arena == "chunk" else {}
        wide, share = program.bucket > NARROW_ROWS, self._share(program, arena)
        before, after = around_experts(program, self.tier, experts, wide, share)
        assert set(after) <= {group.end - 1 for group in found}
        for group, nodes_of in zip(found, lowered, strict=True):
            nodes_of[:0] = launches(before.get(group.begin, nothing))
            nodes_of.extend(launches(after.get(group.end - 1, nothing)))
        nodes = iter(ahead.ask_ahead([node for part in lowered for node in part], ahead.PLAN))
        parts = [
            Part(g.begin, g.end, list(islice(nodes, len(part))))
            for g, part in zip(found, lowered, strict=True)
        ]

        def alone(i: int) -> list[Launch]:
            return launches(lambda at: lower(program.ops[i], at))

        blocks = self._inputs if arena == "chunk" else self._inputs[:1]
        replay = CudaReplay(
            self.driver, program, parts, alone, tuple(blocks), faults, self.tier,
            self._workers(program, arena), asked.tell, self._tables.failure,
        )  # fmt: skip
        replay.scratch = context.buffer
        replay.lent, replay.staged, replay.chunk = scratch.lent, staged, arena == "chunk"
        if before and wide:
            replay.stream(self._expert_ops(program))
        if program.bucket == 1 and "layer.0" in program.marks and not self._told:
            self._told = True
            self._tell(program, replay)
        return replay

    def _scratch(
        self,
        program: Program,
        arena: Arena,
        found: Sequence[Group],
        offsets: dict[Buffer, int],
        arena_bytes: int,
        asked: Asked,
        staged: StagedChunk | None,
    ) -> Scratch:
        """Places a program's scratch; a wide chunk's at the end of the expert slots, where there are any, and the stage
        behind it."""
        meter, faults = Meter(), self._faults[arena]
        context = self._context(program, arena, offsets, Scratch(0, meter), asked, faults, staged)
        measure(found, context, meter)
        buffers, most = -(-arena_bytes // ALIGNMENT) * ALIGNMENT, meter.most
        lending = None if self.tier is None or self.tier.prompts is None else self.tier.lending
        room = 0 if lending is None else lending.nbytes
        if staged is not None and not staged.stage.address:
            self._place_stage(staged.stage, buffers + most + staged.stage.nbytes <= room)
        behind = 0 if staged is None else staged.stage.lent
        own = arena == "step" or program.bucket <= OWN_ROWS or buffers + most + behind > room
        if lending is None or own:
            self._allocate(arena_bytes, arena)
            self._workspace.grow(most)
            return Scratch(self._arenas.get(arena, (0, 0))[0], self._workspace, behind)
        base, workspace = lending.end - behind - buffers - most, self._workspace.beside()
        base = base // ALIGNMENT * ALIGNMENT
        workspace.put(base + buffers, most)
        return Scratch(base, workspace, lending.end - base)

    def _staged(self, program: Program, arena: Arena) -> StagedChunk | None:
        """The program's use of the stage; None where its cells do not spill, or it reads them where they lie."""
        fetch = staged_fetch(program) if arena == "chunk" else None
        if fetch is None:
            return None
        self._stage = self._stage or KvStage(self.driver, fetch)
        return StagedChunk(self.driver, self._stage, program, program.bucket > CHOOSING_ROWS)

    def _place_stage(self, stage: KvStage, lent: bool) -> None:
        """At the end of the expert slots where these have room for it, else in memory of its own."""
        if not lent or self.tier is None:
            return stage.place(self.driver.allocate(stage.nbytes))
        end = self.tier.lending.end
        address = (end - stage.nbytes) // ALIGNMENT * ALIGNMENT
        return stage.place(address, end - address)

    def _borders(self, program: Program, arena: Arena) -> list[int]:
        """Ops before which a chunk may stand still, so that no group may reach across: its parts end after layers, and
        experts may have to be waited for."""
        if arena == "step":
            return []
        return [*program.marks.values(), *(self._expert_ops(program) if self.tier is not None else ())]

    def _expert_ops(self, program: Program) -> dict[int, int]:
        """Ops that begin a layer's routed experts where those are in tiers, and the layer's number among such."""
        tier = self.tier
        return {
            i: tier.layer(op.gate)
            for i, op in enumerate(program.ops)
            if tier is not None and isinstance(op, ExpertGateUp) and tier.holds(op.gate)
        }

    def _share(self, program: Program, arena: Arena) -> ChunkShare | None:
        """What gives the CPU some of a chunk's experts; None where all are copied."""
        prompts = None if self.tier is None else self.tier.prompts
        narrow = arena == "chunk" and program.bucket <= min(SHARED_ROWS, NARROW_ROWS)
        return prompts.share if narrow and prompts is not None else None

    def _workers(self, program: Program, arena: Arena) -> MailboxWorkers | None:
        """Those that compute experts for a program."""
        if arena == "step":
            return None if self.tier is None else self.tier.workers
        share = self._share(program, arena)
        return None if share is None else share.workers

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
        self,
        program: Program,
        arena: Arena,
        offsets: dict[Buffer, int],
        scratch: Scratch,
        asked: Asked,
        faults: HostMemory,
        staged: StagedChunk | None,
    ) -> Context:
        def buffer_address(buffer: Buffer) -> int:
            if buffer.role == "scratch":
                return scratch.base + offsets[buffer]
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
            lambda weight: self._expert_table(weight, arena),
            scratch.workspace.take,
            scratch.workspace.counters,
            lambda ids: asked.boxes.get(ids, TableBox()),
            faults.address,
            self.tier if arena == "step" else None,
            staged,
        )

    def _expert_table(self, weight: Weight, arena: Arena = "step") -> int:
        prompts = None if self.tier is None else self.tier.prompts
        if arena == "chunk" and prompts is not None:
            table = prompts.table(weight)
        else:
            table = None if self.tier is None else self.tier.table(weight)
        return self._weights.expert_table(weight) if table is None else table

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
        if buffer.in_ram:
            host = self.driver.allocate_host(buffer.nbytes)
            return host.address, HostArray(self.driver, host, buffer.shape, dtype)
        address = self._states.take(buffer.nbytes)
        if buffer.data is not None:
            self.driver.upload(address, np.ascontiguousarray(buffer.data))
        return address, DeviceArray(self.driver, address, buffer.shape, dtype)
