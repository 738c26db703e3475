"""Experts in tiers: slots and a staging ring in the GPU's memory, all experts in page-locked RAM, CPU workers for a
share of the misses (native/include/strata/tiers_gpu.h, kernels/experts_begin.cu, experts_stage.cu)."""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from strata import _native
from strata.backends.cpu.tiers import ExpertTiers
from strata.backends.cuda.chunk_share import ChunkShare
from strata.backends.cuda.driver import Arg, Driver, Launch
from strata.backends.cuda.expert_planes import classes_of, formats, plane_bytes, plane_macros
from strata.backends.cuda.lent_slots import LentSlots, lay_out
from strata.backends.cuda.lower import Context, ints, launch, pointer
from strata.backends.cuda.memory import ALIGNMENT
from strata.backends.cuda.pattern import Product
from strata.backends.cuda.prompt_experts import PromptExperts
from strata.backends.cuda.workers import MailboxWorkers
from strata.errors import UnsupportedError
from strata.hw.machine import DEFAULT_LINK
from strata.ops.buffers import Buffer, Weight
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.ops.linear import LinearF, LinearQ
from strata.ops.program import Program
from strata.ops.router import Router
from strata.ops.step import MAX_STEP_ROWS

_THREADS = 256
_AT_ONCE = 2048  # kChangesAtOnce
_MEASURED = 64 << 20  # bytes that are enough to tell the link's rate
# Thread blocks that fetch on a guess, of a multiprocessor each: kernels that run beside have the others.
_FETCHERS, _FETCHERS_SHARE = 20, 0.155
GUESS_ROWS = 8  # of the steps that guess
_PROMOTERS = 132  # thread blocks that copy promoted experts; most replays have few or none
_STAGE, _LAYER = "stage_experts", 10  # the entry, and where among its arguments the layer stands


@dataclass(frozen=True)
class TierOptions:
    """`slots`: bytes of each expert slot; `places`: of the staging ring; `k`: experts a token; `cpu_share`: of misses,
    negative: by measured costs; `link_rate`: bytes a second that copies are held to, 0: as they come."""

    slots: tuple[int, ...]
    places: int
    k: int
    cpu_share: float = 0.0
    workers: int = 1
    link_rate: float = 0.0
    prompt_places: int = 0  # of the ring of prompt chunks; 0: prompts take the step form
    chunk_share: float = 0.0  # as cpu_share, of what a layer of a narrow prompt chunk lacks
    ahead: int = 0  # experts fetched for the next layer on a guess, at most; 0: no guesses are made


class ExpertTier:
    """Of one backend. Memory is taken here; launches are asked for while programs are lowered. `faults`: addresses of
    the words of steps and of chunks."""

    def __init__(self, driver: Driver, experts: ExpertTiers, options: TierOptions, faults: tuple[int, int]):
        if not experts.whole:
            raise UnsupportedError(
                "a GPU reads experts from RAM, and RAM does not hold all of them; raise --ram-budget-gib, or run on "
                "--device cpu"
            )
        self._driver, self._experts, self._options = driver, experts, options
        self._stacks = experts.stacks
        self._classes = classes_of(self._stacks)
        self.num_experts = max(gate.shape[0] for gate, _, _ in self._stacks)
        self.costs: list[float] | None = None  # that misses are split by, as `set_costs` takes them
        self._measured = 0.0  # bytes a second of the link, while slots were filled
        self._allocate(faults)
        self._next: dict[
            Weight, tuple[Weight, int]
        ] = {}  # gate stack -> the next layer's router, and its layer
        self._guesses: dict[int, Buffer] = {}  # logits of guesses, by parity of the layer
        self._gate_up: dict[int, ExpertGateUp] = {}  # the newest op of each layer
        self._replays = 0  # started

    # ---- memory ------------------------------------------------------------------------------------------------

    def _allocate(self, faults: tuple[int, int]) -> None:
        driver, o, layers, experts = self._driver, self._options, len(self._stacks), self.num_experts
        gates = [gate for gate, _, _ in self._stacks]
        sizes = (MAX_STEP_ROWS, o.k, max(g.shape[2] for g in gates), experts)
        mapped, state, _ = _native.gpu_tier_sizes(*sizes)
        self._mapped = driver.allocate_host(mapped)
        offsets = np.array(_native.expert_plane_offsets(self._experts.store), np.uint64)
        place = -(-int(offsets[:, 3].max()) // ALIGNMENT) * ALIGNMENT
        self._tables = driver.allocate(8 * layers * 3 * experts)
        addresses = [
            driver.allocate(4 * layers * experts),
            driver.allocate(8 * layers * experts),
            self._tables,
        ]
        addresses += [self._upload(self._sources()), self._upload(offsets)]
        addresses += [self._upload(np.array([self._class_of(i) for i in range(layers)], np.uint32))]
        zeros = driver.allocate(place)
        addresses += [driver.allocate(4 * experts), zeros, driver.allocate(place * o.places)]
        # Kernels may look at any expert's bytes before they know whether their row lives.
        nothing = np.broadcast_to(offsets[:, :3, None] + np.uint64(zeros), (layers, 3, experts))
        driver.upload(self._tables, nothing.copy())
        addresses.append(driver.allocate(state))
        inner = max(g.shape[1] for g in gates)
        slots = self._slots()
        self.device = _native.GpuDevice(
            self._experts.store, slots, *sizes[:3], inner, experts, o.workers if o.cpu_share else 0,
            self._experts.wait_limit_ns, self._mapped.address, faults[0],
        )  # fmt: skip
        self.workers = MailboxWorkers(self.device)
        self.device.set_share(o.cpu_share)
        self.device.set_ahead(o.ahead)
        self.device.set_link(1e9 / o.link_rate if o.link_rate else 0.0)
        self._tier = self._upload(np.frombuffer(self.device.image(addresses, place, o.places), np.uint8))
        self.prompts: PromptExperts | None = None
        if o.prompt_places:
            share = self._chunk_share((o.k, sizes[2], inner, experts), faults[1])
            self.prompts = PromptExperts(driver, self, o.prompt_places, place, share)
        self.lending = LentSlots(self.device, slots, self._experts.blob_bytes)

    def _chunk_share(self, sizes: tuple[int, int, int, int], faults: int) -> ChunkShare | None:
        """`sizes`: experts a token, hidden and widest inner row, experts a layer."""
        o = self._options
        if not o.chunk_share or not o.workers:
            return None
        return ChunkShare(self._driver, self, self._experts, sizes, o.workers, o.chunk_share, faults)

    def _slots(self) -> list[tuple[int, int]]:
        """Address and bytes of every slot, all in one allocation."""
        sizes = self._options.slots
        return lay_out(self._driver.allocate(sum(sizes)), sizes) if sizes else []

    def _sources(self) -> Any:
        """Where kernels read experts in RAM, uint64 [layers, 3, experts]."""
        store, driver = self._experts.store, self._driver
        there = driver.register(store.address, store.nbytes)
        self._end = weakref.finalize(self, driver.unregister, store.address)
        sources = np.zeros((len(self._stacks), 3, self.num_experts), np.uint64)
        for i, planes in enumerate(self._stacks):
            for p, stack in enumerate(planes):
                table = self._experts.tables[stack]
                sources[i, p, : len(table)] = table + np.uint64(there - store.address)
        return sources

    def _upload(self, data: Any) -> int:
        address = self._driver.allocate(data.nbytes)
        self._driver.upload(address, np.ascontiguousarray(data))
        return address

    def _class_of(self, layer: int) -> int:
        return list(self._classes).index(formats(self._stacks[layer]))

    def close(self) -> None:
        """Ends the workers; the policy has ended before."""
        for workers in self._all_workers:
            workers.device.close()

    # ---- what kernels look up ----------------------------------------------------------------------------------

    def table(self, weight: Weight) -> int | None:
        """Address of uint64 [num_experts] for a stack in tiers."""
        at = self.plane(weight)
        return None if at is None else self._tables + 8 * at * self.num_experts

    def plane(self, weight: Weight) -> int | None:
        """Number of a stack among all planes of all layers; None: it is not in tiers."""
        for i, planes in enumerate(self._stacks):
            if weight in planes:
                return 3 * i + planes.index(weight)
        return None

    def layer(self, gate: Weight) -> int:
        """Number of the layer with this gate stack among those with experts."""
        return self._experts.layers[gate]

    def layer_of(self, stack: Weight) -> int:
        """The same of any of a layer's stacks."""
        return next(i for i, planes in enumerate(self._stacks) if stack in planes)

    def macros(self, layer: int) -> list[tuple[str, str | int]]:
        """Of expert_copy.cuh."""
        return plane_macros(self._stacks[layer])

    def plane_bytes(self, layer: int) -> tuple[int, ...]:
        """Bytes of an expert's gate, up and down."""
        return tuple(plane_bytes(w) for w in self._stacks[layer])

    def holds(self, gate: Weight) -> bool:
        """Whether the layer with this gate stack is in tiers."""
        return gate in self._experts.layers

    @property
    def shares(self) -> bool:
        """Whether CPU workers take misses."""
        return self._options.cpu_share != 0

    @property
    def address(self) -> np.uint64:
        """Of the device's ExpertTier."""
        return pointer(self._tier)

    # ---- launches ----------------------------------------------------------------------------------------------

    def stage(
        self, at: Context, gate_up: ExpertGateUp, logits: Buffer | None, renormalise: bool
    ) -> list[Launch]:
        """Looks up what the router chose by `logits` (None: the op's pairs by expert), and copies what is missing."""
        layer = self._experts.layers[gate_up.gate]
        planes = self._stacks[layer]
        experts = gate_up.gate.shape[0]
        macros = [
            *plane_macros(planes), ("STRATA_EXPERTS", experts), ("STRATA_TOP", gate_up.k),
            ("STRATA_PAIRS", at.bucket * gate_up.k), ("STRATA_CHOOSE", int(logits is not None)),
            ("STRATA_RENORMALISE", int(renormalise)),
        ]  # fmt: skip
        assert experts == self.num_experts, "all layers have as many experts"
        q8 = [pointer(0)] * 3 if gate_up.q8 is None else at.q8(gate_up.q8)
        rows = gate_up.x or gate_up.q8
        assert rows is not None
        self._gate_up[layer] = gate_up
        chosen = (logits, None, None) if logits is not None else (None, gate_up.pairs, gate_up.offsets)
        args: list[Arg] = [
            at.live(rows),
            *at.at(*chosen),
            *q8,
            *at.at(gate_up.x),
            *ints(gate_up.gate.shape[2]),
            self.address,
            *ints(layer),
        ]
        args += ints(
            *(plane_bytes(w) for w in planes), int(logits is not None and self._fetches(at, gate_up.gate))
        )
        assert args[_LAYER] == layer
        grid = at.properties.multiprocessors
        node = launch("experts_stage.cu", _STAGE, grid, _THREADS, args, macros=macros)
        changes = self._begin(layer, step=False) if self._takes_changes(at.bucket, layer) else []
        first, *rest = [*changes, node]
        return [replace(first, joins=logits is not None), *rest]

    def _takes_changes(self, rows: int, layer: int) -> bool:
        """Whether a step of so many rows takes changes before this layer too, not at its begin alone: as often as the
        ring may have come round. What it has lost by then crosses the link once more for its promotion."""
        every = max(self._options.places // (rows * self._options.k), 1)
        return rows > 1 and layer > 0 and layer % every == 0

    def fetchers(self, bucket: int) -> int:
        """Thread blocks that may run beside kernels of steps of so many rows."""
        if not self._options.ahead or bucket > GUESS_ROWS:
            return 0
        return min(_FETCHERS, max(int(self._driver.properties.multiprocessors * _FETCHERS_SHARE), 1))

    def _fetches(self, at: Context, gate: Weight) -> bool:
        """Whether a step of so many rows fetches ahead for the layer after this one."""
        return gate in self._next and self.fetchers(at.bucket) > 0

    def guessed(self, router: Router, gate: Weight) -> list[Product]:
        """The next layer's router, for this layer's rows; to be multiplied before `fetch_ahead`."""
        following = self._next.get(gate)
        if following is None or not self._options.ahead:
            return []
        weight, layer = following
        rows = router.logits.shape[0]
        if layer % 2 not in self._guesses or self._guesses[layer % 2].shape[0] < rows:
            shape = (max(rows, GUESS_ROWS), self.num_experts)
            self._guesses[layer % 2] = Buffer(
                f"guess.{layer % 2}", shape, role="state", live=router.logits.live
            )
        return [Product(weight, self._guesses[layer % 2])]

    def fetch_ahead(self, at: Context, x: Buffer, router: Router, gate: Weight) -> list[Launch]:
        """Beside the launches that follow: copies of what `guessed` names."""
        found = self.guessed(router, gate)
        if not found:
            return []
        guess, (_, layer) = found[0].out, self._next[gate]
        planes, top = self._stacks[layer], router.topk_ids.shape[-1]
        macros = [
            *plane_macros(planes), ("STRATA_EXPERTS", self.num_experts), ("STRATA_TOP", top),
            ("STRATA_PAIRS", at.bucket * top), ("STRATA_CHOOSE", 1), ("STRATA_RENORMALISE", int(router.renormalise)),
        ]  # fmt: skip
        args: list[Arg] = [at.live(x), *at.at(guess), self.address, *ints(layer)]
        used = sum(plane_bytes(w) for w in self._stacks[self._experts.layers[gate]])
        args += ints(*(plane_bytes(w) for w in planes), used)
        grid = max(self.fetchers(at.bucket), 1) + 1
        node = launch("experts_stage.cu", "fetch_guessed", grid, _THREADS, args, macros=macros)
        return [replace(node, beside=True, dependent=False)]

    def learn(self, program: Program) -> None:
        """Notes which router follows which layer's."""
        made = {op.out: op.weight for op in program.ops if isinstance(op, LinearF | LinearQ)}
        routers: list[tuple[Weight | None, Weight]] = []
        weight = None
        for op in program.ops:
            if isinstance(op, Router):
                weight = made.get(op.logits)
            elif isinstance(op, ExpertGateUp) and op.gate in self._experts.layers:
                routers.append((weight, op.gate))
        for (_, gate), (following, stack) in pairwise(routers):
            layer = self._experts.layers[stack]
            if following is not None and layer == self._experts.layers[gate] + 1:
                self._next[gate] = following, layer

    def take(self, at: Context, down: ExpertDown) -> list[Launch]:
        """The CPU's rows to the op's own; nothing without workers."""
        if not self.shares:
            return []
        layer = self.layer_of(down.weight)
        self.workers.bind(layer, self._gate_up[layer], down)
        experts, hidden, _ = down.weight.shape
        macros = [
            *plane_macros(self._stacks[layer]), ("STRATA_EXPERTS", experts), ("STRATA_TOP", down.k),
            ("STRATA_PAIRS", at.bucket * down.k), ("STRATA_CHOOSE", 0), ("STRATA_RENORMALISE", 0),
        ]  # fmt: skip
        args = [*at.at(down.pairs, down.offsets, down.out), *ints(hidden), self.address]
        args.append(pointer(at.faults))
        grid = at.bucket * down.k
        return [launch("experts_stage.cu", "take_computed", grid, _THREADS, args, macros=macros)]

    def prologue(self, launches: Sequence[Launch]) -> list[Launch]:
        """What a replay of these launches begins with; nothing where no expert is in it."""
        first = next((n for n in launches if n.kernel.entry == _STAGE), None)
        return [] if first is None else self._begin(int(first.args[_LAYER]), step=True)

    def _begin(self, layer: int, *, step: bool, settle: bool = False) -> list[Launch]:
        """Takes changes before `layer`. `step`: one begins; `settle`: also of layers that chunks hold as they are."""
        planes = self._stacks[0]
        held = 0 if self.prompts is None or settle else self.prompts.held_address
        args: list[Arg] = [self.address, *ints(layer, int(step)), pointer(held)]
        nodes = [launch("experts_begin.cu", "begin_experts", 1, _THREADS, args, macros=plane_macros(planes))]
        for number, of_class in enumerate(self._classes.values()):
            args = [self.address, *ints(number, *(plane_bytes(w) for w in of_class))]
            grid = min(_PROMOTERS, self._driver.properties.multiprocessors)
            macros = plane_macros(of_class)
            nodes.append(launch("experts_begin.cu", "promote_experts", grid, _THREADS, args, macros=macros))
        return nodes

    # ---- while running -----------------------------------------------------------------------------------------

    def fill(self, experts: Iterable[tuple[int, int]]) -> int:
        """Brings (layer, expert) in turn into the first free slot that holds them, and waits; returns how many. Only
        while nothing runs."""
        free: dict[int, list[int]] = {}
        for slot, (size, state, _, _) in reversed(list(enumerate(self.device.slots()))):
            if state == 0:
                free.setdefault(size, []).append(slot)
        count = moved = 0
        for layer, expert in experts:
            wanted = self._experts.blob_bytes[layer]
            size = min((s for s, slots in free.items() if slots and s >= wanted), default=0)
            if size and self.device.promote(layer, expert, free[size][-1]):
                free[size].pop()
                count += 1
                moved += wanted
                if count % _AT_ONCE == 0:
                    moved = self._timed(moved)
        while self.device.moving:
            moved = self._timed(moved)
        return count

    def _timed(self, moved: int) -> int:
        """Applies changes; what they moved tells the link's rate. Returns 0."""
        first = self._driver.mark()
        self.settle()
        last = self._driver.mark()
        self._driver.synchronize()
        microseconds = self._driver.elapsed(first, last)
        if moved >= _MEASURED and microseconds > 0:
            self._measured = max(self._measured, 1e6 * moved / microseconds)
        return 0

    def set_costs(self, costs: list[float]) -> None:
        """What misses are split by (`MissCosts` of tiers.h)."""
        self.costs = costs
        for workers in self._all_workers:
            workers.device.set_costs(costs)

    def start(self, workers: MailboxWorkers | None) -> int:
        """A replay is started, whose lists these serve; its number."""
        self._replays += 1
        if workers is not None:
            workers.start(self._replays)
        return self._replays

    def over(self, replay: int) -> None:
        """That replay and all before it are over."""
        for workers in self._all_workers:
            workers.over(replay)

    @property
    def _all_workers(self) -> list[MailboxWorkers]:
        share = None if self.prompts is None else self.prompts.share
        return [self.workers] if share is None else [self.workers, share.workers]

    @property
    def link_rate(self) -> float:
        """Bytes a second that copies reach, or are held to."""
        return self._options.link_rate or self._measured or DEFAULT_LINK

    def settle(self) -> None:
        """Applies what was asked for, without a step, whether or not chunks hold experts where they are."""
        for node in self._begin(0, step=False, settle=True):
            self._driver.launch(node)
        self._driver.synchronize()

    def make_ready(self, nbytes: int, first: int | None, rows: int) -> bool:
        """A step towards a chunk of a program of so many rows, beside steps that go on: slots that lend their last
        `nbytes` are emptied by those; then the experts of the `first` layer that comes on the
        copies' stream (None: none does) are sent. Whether all of that was asked for before; no chunk is under way."""
        assert self.prompts is not None
        if self.prompts.begun == rows:
            return True
        self.prompts.release()
        if nbytes and not self.lending.ask(nbytes):
            return False
        if first is None:
            return True
        self.prompts.begin(first, rows)
        self.prompts.begun = rows
        return False

    def begin_chunk(self, nbytes: int, first: int | None, rows: int) -> None:
        """The same at once, as far as it has not been done."""
        assert self.prompts is not None
        if self.prompts.begun == rows:
            self.prompts.begun = 0
            return
        self.prompts.release()
        if nbytes:
            self.lending.lend(nbytes, self.settle)
        if first is not None:
            self.prompts.begin(first, rows)

    def end_prompts(self) -> None:
        """Experts may move again; slots that were lent get what the prompts used."""
        if self.prompts is None:
            return
        if self.prompts.held or self.lending.lent:
            self.prompts.release()
        if self.lending.lent:
            self.lending.give_back(self.prompts.take_used())
        if self.lending.refilling:
            self.lending.refill()

    @property
    def blob_bytes(self) -> tuple[int, ...]:
        """Of one expert of each layer."""
        return self._experts.blob_bytes
