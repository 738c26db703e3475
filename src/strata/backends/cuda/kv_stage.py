"""The stage: one layer's keys and values of one sequence, from where the chunks of its prompt read them while the whole
of them lies in RAM (docs/cuda-prompts.md, kernels/kv_stage.cu).

It is a pool like any other, with a page table of its own that says i for page i, so that kernels need not know it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from strata.backends.cuda.driver import COPIES, Arg, Driver, Launch
from strata.backends.cuda.lower import Context, floats, ints, launch, pointer
from strata.backends.cuda.lower_fetch import cell_bytes
from strata.backends.cuda.memory import ALIGNMENT
from strata.ops.kv_fetch import STAGE_BYTES, KvFetch
from strata.ops.program import Program
from strata.ops.step import PAGE_CELLS

CHOOSING_ROWS = 1024  # rows of a chunk up to which only cells that some row selected are copied
_WANTED_THREADS = 512
_COPY_WARPS = 8
_BUSY = 2  # thread blocks a multiprocessor that copy between selection and attention
_COPIERS = 48  # thread blocks that copy beside a layer's kernels, as prompt_experts.py has them


class KvStage:
    """Its memory, one place for all programs of a backend; `place` comes before anything is launched."""

    def __init__(self, driver: Driver, fetch: KvFetch):
        self._driver = driver
        self.pages = fetch.page_table.shape[1]
        planes = (fetch.k_pool, fetch.v_pool, fetch.k_scales, fetch.v_scales)
        each = [0 if b is None else b.nbytes // b.shape[0] * self.pages for b in planes]
        ends = np.cumsum([-(-n // ALIGNMENT) * ALIGNMENT for n in each]).tolist()
        self.nbytes: int = ends[-1]
        self._offsets = [None if b is None else at for b, at in zip(planes, (0, *ends[:-1]), strict=True)]
        self.address, self.lent = 0, 0  # `lent`: bytes of expert slots that it takes
        sequences, table = driver.allocate(fetch.sequences.nbytes), driver.allocate(4 * self.pages)
        driver.upload(table, np.arange(self.pages, dtype=np.int32))
        words = -(-self.pages * (PAGE_CELLS // fetch.ratio) // 32)
        self.wanted, self.taken = driver.allocate(4 * words), driver.allocate(4 * words)
        self.sequences, self.page_table = pointer(sequences), pointer(table)
        self._ready, self._free = driver.event(), driver.event()

    def place(self, address: int, lent: int = 0) -> None:
        """From now on it lies there."""
        self.address, self.lent = address, lent

    @property
    def pools(self) -> list[Arg]:
        """Addresses of keys, values and their scales; 0 for none."""
        return [pointer(0 if at is None else self.address + at) for at in self._offsets]

    def settle(self) -> None:
        """What is started from now on comes after all copies that were started on their own stream."""
        self._driver.wait_on(self._ready)

    def bring(self, graph: Any) -> None:
        """Starts copies on their own stream, after everything that was started before."""
        self._driver.signal(self._free)
        self._driver.wait_on(self._free, COPIES)
        self._driver.replay(graph, COPIES)
        self._driver.signal(self._ready, COPIES)


class StagedChunk:
    """One chunk program's use of the stage; cells of a `wide` one come ahead where they can."""

    def __init__(self, driver: Driver, stage: KvStage, program: Program, wide: bool):
        self.stage, self._driver, self._program = stage, driver, program
        self._ahead = dict(_ahead(program)) if wide else {}  # border -> fetch: their ops
        self._copies: dict[int, Launch] = {}  # by border
        self._graphs: dict[int, Any] = {}

    # ---- while it is lowered -----------------------------------------------------------------------------------

    def fetch(self, op: KvFetch, at: Context) -> list[Launch]:
        """Launches between selection and attention: none where a layer's cells come ahead."""
        border = next((b for b, i in self._ahead.items() if self._program.ops[i] is op), None)
        if border is not None:
            copiers = min(_COPIERS, at.properties.multiprocessors)
            self._copies[border] = self._copy(op, at, copiers, chosen=False)
            return []
        rows, budget = op.selected.shape
        args = [at.live(op.selected), *at.at(op.positions, op.sequences, op.selected)]
        args += [pointer(self.stage.wanted), *ints(self.stage.pages, op.ratio, budget), pointer(at.faults)]
        grid = -(-rows * budget // _WANTED_THREADS)
        wanted = launch("kv_stage.cu", "kv_wanted", grid, _WANTED_THREADS, args)
        return [wanted, self._copy(op, at, _BUSY * at.properties.multiprocessors, chosen=True)]

    def _copy(self, op: KvFetch, at: Context, grid: int, chosen: bool) -> Launch:
        """Copies what `wanted` names, or all cells before the chunk."""
        num_pages, kv_heads = op.k_pool.shape[:2]
        planes = (op.k_pool, op.v_pool, op.k_scales, op.v_scales)
        args = at.at(op.positions, op.sequences, op.page_table)
        args += [
            pointer(self.stage.wanted if chosen else 0),
            pointer(self.stage.taken),
            pointer(at.counters(2)),
        ]
        args += [pointer(at.buffer(op.counts) + 8 * STAGE_BYTES), *at.at(*planes), *self.stage.pools]
        args += ints(self.stage.pages, num_pages, op.ratio, kv_heads, *(cell_bytes(b) for b in planes))
        args += [*floats(op.link_ns_per_byte), pointer(at.faults if chosen else 0)]
        return launch("kv_stage.cu", "kv_bring", grid, 32 * _COPY_WARPS, args)

    # ---- while it runs -----------------------------------------------------------------------------------------

    @property
    def borders(self) -> list[int]:
        """Ops before which copies are started."""
        return list(self._ahead)

    def start(self, border: int) -> None:
        """Before the ops from there on are started: the copies whose time has come."""
        if border in self._ahead:
            self.stage.bring(self._graph(border))

    def meet(self, begin: int, end: int) -> None:
        """Ops [begin, end) come after the copies that they need; a chunk's first after any that were left."""
        if begin == 0 or any(begin <= i < end for i in self._ahead.values()):
            self.stage.settle()

    def prepare(self, begin: int, end: int) -> None:
        """Records what ops [begin, end) will ask for."""
        for border in self._ahead:
            if begin <= border < end:
                self._graph(border)

    def _graph(self, border: int) -> Any:
        if border not in self._graphs:
            self._graphs[border] = self._driver.record([self._copies[border]], COPIES)
        return self._graphs[border]


def staged_fetch(program: Program) -> KvFetch | None:
    """A fetch of the program that wants a stage; all of them have pools of one shape."""
    return next((op for op in program.ops if isinstance(op, KvFetch) and op.staged), None)


def _ahead(program: Program) -> Iterator[tuple[int, int]]:
    """(border, fetch): a layer's border after the attention before, from which on the stage is free, and a fetch after
    it. The first border at which the chunk's inputs are on the device is the second one."""
    borders, before = sorted(set(program.marks.values()) - {0}), -1
    for i, op in enumerate(program.ops):
        if isinstance(op, KvFetch) and op.staged:
            border = next((b for b in borders if before < b <= i), None)
            if border is not None:
                yield border, i
            before = i
