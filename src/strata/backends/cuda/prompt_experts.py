"""Experts of prompt chunks that lie in no slot: copied to a ring of their own, from where a chunk's products read them
(kernels/prompt_experts.cu).

A wide chunk needs nearly all experts: the next layer's are copied on a stream of their own while a layer computes, as
far as the ring has room beside that layer's; the rest when it is done. A narrow chunk needs few: which ones is known
when its router has chosen, and they are copied between that and the products.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from strata.backends.cuda.chunk_share import ChunkShare
from strata.backends.cuda.driver import COMPUTE, COPIES, Arg, Driver, Launch
from strata.backends.cuda.lower import Context, ints, launch, pointer
from strata.backends.cuda.memory import ALIGNMENT
from strata.ops.buffers import Weight
from strata.ops.experts import ExpertDown, ExpertGateUp

if TYPE_CHECKING:
    from strata.backends.cuda.tier import ExpertTier

# Rows up to which only experts that are needed are copied, when it is known which; more need nearly all, which come
# while the layer before computes.
NARROW_ROWS = 256
_THREADS = 256
# Groups of threads that copy beside a layer's kernels: as many as the link needs where sending takes longer than
# computing; where it takes less, as few as bring a layer while another computes: on an H200 at 24 GiB 8,192 tokens took
# 0.975 s with 16, 1.00 with 20, 24, 32 or 40.
_COPIERS, _FEW_COPIERS = 48, 16
# Groups of a thread block, the first that fit: a layer's kernels do without the multiprocessors where groups are.
_GROUPS = (4, 2)
_GROUP_ROOM = 2 * 8192  # shared memory of a group, `TileSpace` of kernels/expert_copy.cuh
_OTHER_ROOM = 1024  # shared memory beside it
_SOON = 1024  # rows of a chunk that is computed sooner than its experts are sent
_BESIDE, _REST, _ALL = 0, 1, 2
# Layers whose experts must stay: that which computes, and the next one, whose list is made meanwhile. Further ones that
# the policy leaves alone: a chunk gets so far before what it asks for is applied.
_HELD, _SOON_HELD = 2, 4


class PromptExperts:
    """Of an ExpertTier."""

    def __init__(
        self, driver: Driver, tier: "ExpertTier", places: int, place_bytes: int, share: ChunkShare | None
    ):
        self._driver, self._tier, self.share = driver, tier, share
        layers, experts = len(tier.blob_bytes), tier.num_experts
        place = -(-place_bytes // ALIGNMENT) * ALIGNMENT
        assert places >= experts, "a layer may lack all of its experts"
        self._tables = driver.allocate(8 * layers * 3 * experts)
        self._lists = -(-(16 + 4 * experts) // 16) * 16
        self._counts = driver.allocate_host(32)  # u64 experts, bytes
        self._held_layers = driver.allocate(8)  # HeldLayers of tiers_gpu.h
        self._used = driver.allocate(4 * layers * experts)
        parts = [driver.allocate(place * places), place, driver.allocate(8), self._tables]
        parts += [driver.allocate(layers * self._lists), self._counts.address, self._used]
        image = np.array([*parts, places | self._lists << 32], np.uint64)
        self._ring = driver.allocate(image.nbytes)
        driver.upload(self._ring, image)
        self._graphs: dict[tuple[int, int, int, int], Any] = {}
        shared = driver.properties.shared - _OTHER_ROOM
        self._groups = next(n for n in _GROUPS if n * _GROUP_ROOM <= shared)
        self._grid = self._copiers(0)
        self._ready, self._done = driver.event(), driver.event()
        self._holds: dict[tuple[int, int], Any] = {}
        self.held = False  # whether experts of any layer must stay where they are
        # Rows of the program whose first layer's experts are under way before its chunk begins.
        self.begun = 0

    def table(self, weight: Weight) -> int | None:
        """Address of uint64 [num_experts] for a stack in tiers, as chunks read it."""
        at = self._tier.plane(weight)
        return None if at is None else self._tables + 8 * at * self._tier.num_experts

    @property
    def held_address(self) -> int:
        """Of what kernels look at before they change the residency table."""
        return self._held_layers

    def _hold(self, first: int, count: int = _HELD) -> None:
        """Experts of these layers must stay where they are, in steps that are started from now on: a wide chunk's list
        of a layer is made before steps that may come between it and the products."""
        self._driver.replay(self._hold_graph(first, count))
        self.held = count > 0
        self._tier.device.reading(first, count + _SOON_HELD if count else 0)

    def _hold_graph(self, first: int, count: int) -> Any:
        if (first, count) not in self._holds:
            args: list[Arg] = [pointer(self._held_layers), *ints(first, count)]
            node = launch("prompt_experts.cu", "hold_layers", 1, 1, args, macros=self._macros(0))
            self._holds[first, count] = self._driver.record([node], COMPUTE)
        return self._holds[first, count]

    def release(self) -> None:
        """No chunk is under way: all experts may move. Those that were sent for one that did not begin, or was given up
        between its parts, arrive before what is started from now on: the ring has one list at a time."""
        self.begun = 0
        if self.held:
            self._driver.signal(self._ready, COPIES)
            self.arrived()
            self._hold(0, 0)

    def take_used(self) -> NDArray[np.uint32]:
        """Pairs that chunks gave each expert since this was last asked, [layers, experts]."""
        used = np.zeros((len(self._tier.blob_bytes), self._tier.num_experts), np.uint32)
        self._driver.download(self._used, used)
        self._driver.upload(self._used, np.zeros_like(used))
        return used

    @property
    def counts(self) -> dict[str, int]:
        """What prompts have had copied, and computed by the CPU where that takes a share."""
        experts, nbytes = self._counts.array.view(np.uint64)[:2].tolist()
        copied = {"prompt_copies": experts, "prompt_copy_bytes": nbytes}
        return copied if self.share is None else copied | self.share.counts

    # ---- a narrow chunk ----------------------------------------------------------------------------------------

    def needed(self, at: Context, op: ExpertGateUp, share: ChunkShare | None, first: bool) -> list[Launch]:
        """Nodes before a layer's products: the experts that the chunk's pairs name and no slot has, without what
        `share` takes; `first`: of the chunk."""
        layer, grid = self._tier.layer(op.gate), at.properties.multiprocessors
        divided = [] if share is None else [share.divide(at, op, self._ring, first)]
        return [self._list(layer, at.buffer(op.offsets)), *divided, self._copy(layer, layer, _ALL, grid)]

    def take(self, at: Context, op: ExpertDown, share: ChunkShare) -> list[Launch]:
        """Nodes after a layer's products."""
        return [share.take(at, op, self._ring)]

    def count(self, at: Context, op: ExpertGateUp) -> list[Launch]:
        """A node that counts a layer's pairs by expert."""
        experts, layer = self._tier.num_experts, self._tier.layer(op.gate)
        args: list[Arg] = [pointer(self._ring), pointer(at.buffer(op.offsets)), *ints(layer, experts)]
        macros = self._macros(layer)
        return [
            launch("prompt_experts.cu", "count_used", -(-experts // _THREADS), _THREADS, args, macros=macros)
        ]

    # ---- a wide chunk ------------------------------------------------------------------------------------------

    def begin(self, layer: int, rows: int) -> None:
        """The first layer's experts of a chunk of a program of so many rows, when everything that was started before is
        done."""
        self._grid = self._copiers(rows)
        self._hold(layer)
        self._driver.signal(self._done)
        self._driver.wait_on(self._done, COPIES)
        self._run(layer, layer, _ALL)
        self._driver.signal(self._ready, COPIES)

    def ahead(self, layer: int, beside: int) -> None:
        """A layer's experts, as far as the ring has room beside those of the layer that computes next."""
        self._run(layer, beside, _BESIDE)

    def arrived(self) -> None:
        """What is started from now on may read the experts of the layer that was asked for last."""
        self._driver.wait_on(self._ready)

    def rest(self, layer: int, beside: int) -> None:
        """The rest of a layer's experts, when all that was started before, the layer `beside` included, is done. Those
        of layer `beside` may move then."""
        self._hold(layer)
        self._driver.signal(self._done)
        self._driver.wait_on(self._done, COPIES)
        self._run(layer, beside, _REST)
        self._driver.signal(self._ready, COPIES)

    def prepare(self, layers: Sequence[int], rows: int) -> None:
        """Records what chunks of a program of so many rows over these layers will ask for."""
        self._grid = self._copiers(rows)
        self._hold_graph(0, 0)
        for layer in layers:
            self._hold_graph(layer, _HELD)
        self._graph(layers[0], layers[0], _ALL)
        for before, layer in pairwise(layers):
            self._graph(layer, before, _BESIDE)
            self._graph(layer, before, _REST)

    def _run(self, layer: int, beside: int, part: int) -> None:
        self._driver.replay(self._graph(layer, beside, part), COPIES)

    def _copiers(self, rows: int) -> int:
        """Thread blocks that copy beside a chunk of so many rows."""
        groups = _COPIERS if rows <= _SOON else _FEW_COPIERS
        return min(-(-groups // self._groups), self._driver.properties.multiprocessors)

    def _macros(self, layer: int) -> list[tuple[str, str | int]]:
        return [*self._tier.macros(layer), ("STRATA_GROUPS", self._groups)]

    def _graph(self, layer: int, beside: int, part: int) -> Any:
        """A chunk's first layer has all copiers: nothing of the chunk computes meanwhile."""
        grid = self._copiers(0) if part == _ALL else self._grid
        key = layer, beside, part, grid
        if key not in self._graphs:
            nodes = [] if part == _REST else [self._list(layer, 0)]
            launches = [*nodes, self._copy(layer, beside, part, grid)]
            self._graphs[key] = self._driver.record(launches, COPIES)
        return self._graphs[key]

    def _list(self, layer: int, offsets: int) -> Launch:
        args: list[Arg] = [self._tier.address, pointer(self._ring), pointer(offsets), *ints(layer)]
        macros = self._macros(layer)
        return launch("prompt_experts.cu", "list_absent", 1, _THREADS, args, macros=macros)

    def _copy(self, layer: int, beside: int, part: int, grid: int) -> Launch:
        args: list[Arg] = [self._tier.address, pointer(self._ring), *ints(layer, beside, part)]
        args += ints(*self._tier.plane_bytes(layer))
        threads, shared = self._groups * _THREADS, self._groups * _GROUP_ROOM
        return launch(
            "prompt_experts.cu",
            "copy_absent",
            grid,
            threads,
            args,
            macros=self._macros(layer),
            shared=shared,
        )
