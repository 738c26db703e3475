"""A lowered program: graphs of its parts, recorded when first asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends.base import raise_fault
from strata.backends.cuda.driver import Driver, HostMemory, Launch
from strata.backends.cuda.inputs import StepInputs
from strata.backends.cuda.kv_stage import StagedChunk
from strata.backends.cuda.prompt_experts import PromptExperts
from strata.backends.cuda.tier import ExpertTier
from strata.backends.cuda.workers import MailboxWorkers
from strata.ops.buffers import NUMPY_DTYPES, Buffer
from strata.ops.program import Program

_NO_FAULTS = bytes(128)


@dataclass(frozen=True)
class Part:
    """Ops [begin, end) and the launches that compute them together."""

    begin: int
    end: int
    launches: list[Launch]


class CudaReplay:
    """`parts` in order are the program; `alone`: launches of one op, where a replay begins or ends in a part.
    `inputs`: the first block is copied by every replay; the others, whose content stays from a program's first part to
    its last, by those that begin with the first op. `workers`: those that compute experts for it. `asked`: ops that ask
    somebody on the host, and how that one is told beforehand; `failure`: what went wrong there."""

    def __init__(
        self,
        driver: Driver,
        program: Program,
        parts: Sequence[Part],
        alone: Callable[[int], list[Launch]],
        inputs: Sequence[StepInputs],
        faults: HostMemory,
        tier: ExpertTier | None = None,
        workers: MailboxWorkers | None = None,
        asked: Sequence[tuple[int, Callable[[], None]]] = (),
        failure: Callable[[], str] = str,
    ):
        self._driver, self._program, self.parts, self._alone = driver, program, parts, alone
        self._inputs, self._faults, self._tier, self._workers = inputs, faults, tier, workers
        self._asked, self._failure = asked, failure
        self._number = 0  # of the last replay, as the tier counts them
        self._graphs: dict[tuple[int, int], Any] = {}
        self._streamed: dict[int, int] = {}
        self.staged: StagedChunk | None = None  # of a chunk that reads spilled cells from a stage
        self.lent = 0  # bytes of expert slots that the program takes while a chunk is read
        self.chunk = False  # whether it reads a prompt
        self._done = driver.event()
        self.scratch: Callable[[Buffer], int] | None = None  # addresses, once it is lowered

    def peek(self, buffer: Buffer) -> NDArray[Any]:
        """A copy of a scratch buffer, where no fused kernel kept it to itself."""
        assert self.scratch is not None
        out = np.empty(buffer.shape, NUMPY_DTYPES[buffer.dtype])
        self._driver.download(self.scratch(buffer), out)
        return out

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Ops [begin, end): starts them and waits; raises FaultError when a kernel reported one."""
        self.submit(begin, end)
        self.wait()
        self.check()

    def stream(self, layers: dict[int, int]) -> None:
        """From now on the routed experts that begin at these ops, of these layers, arrive on a stream of their own."""
        numbers = list(layers.values())
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "two neighbours are held at a time"
        self._streamed = dict(layers)

    def submit(self, begin: int = 0, end: int | None = None) -> None:
        """Starts ops [begin, end) with the inputs as they are now."""
        if begin == 0 and self._reads is not None:
            self._reads.begin_chunk(*self._first_needs)
        for first, after in pairwise(self._cuts(begin, end)):
            if after in self._streamed:
                self._submit_streamed(first, after)
            else:
                self._cells_ahead(first)
                self._start(first, after)
        self._driver.signal(self._done)

    def ready(self) -> bool:
        """Takes a step towards the first part of a chunk, beside steps that go on; whether it may start."""
        return self._reads is None or self._reads.make_ready(*self._first_needs)

    @property
    def _reads(self) -> ExpertTier | None:
        """Of a chunk: the tier where its experts lie, if they do."""
        tier = self._tier if self.chunk else None
        return tier if tier is not None and tier.prompts is not None else None

    @property
    def _first_needs(self) -> tuple[int, int | None, int]:
        """Bytes of slots, the first layer that comes on a stream of its own, rows."""
        return self.lent, next(iter(self._streamed.values()), None), self._program.bucket

    def _cuts(self, begin: int, end: int | None) -> list[int]:
        """Where ops [begin, end) are started piece by piece: before experts that arrive, and after their layer."""
        last = len(self._program) if end is None else end
        ahead = () if self.staged is None else self.staged.borders
        places = {*self._streamed, *self._program.marks.values()} if self._streamed or ahead else ()
        return [begin, *sorted(i for i in places if begin < i < last), last]

    def _submit_streamed(self, begin: int, op: int) -> None:
        """Ops up to those of routed experts, which may be read by whatever is started afterwards."""
        prompts, order = self._prompts, list(self._streamed)
        at = order.index(op)
        layer = self._streamed[op]
        if at > 0:
            prompts.rest(layer, self._streamed[order[at - 1]])
        self._cells_ahead(begin)
        self._start(begin, op)
        if at + 1 < len(order):
            prompts.ahead(self._streamed[order[at + 1]], layer)
        prompts.arrived()

    def _cells_ahead(self, begin: int) -> None:
        """At a layer's begin: copies of cells that a layer to come attends to."""
        if self.staged is not None:
            self.staged.start(begin)

    @property
    def _prompts(self) -> PromptExperts:
        assert self._tier is not None and self._tier.prompts is not None
        return self._tier.prompts

    def _start(self, begin: int, end: int) -> None:
        graph = self._graph(begin, end)
        if self.staged is not None:
            self.staged.meet(begin, end)
        for block in self._blocks(begin):
            block.snapshot()
        if self._tier is not None:
            self._number = self._tier.start(self._workers)
        self._tell_hosts(begin, end)
        self._driver.replay(graph)

    def prepare(self, begin: int = 0, end: int | None = None) -> None:
        """Compiles and records ops [begin, end)."""
        for first, after in pairwise(self._cuts(begin, end)):
            self._graph(first, after)
        if begin == 0 and self._streamed:
            self._prompts.prepare(list(self._streamed.values()), self._program.bucket)
        if self.staged is not None:
            self.staged.prepare(begin, len(self._program) if end is None else end)

    def _graph(self, begin: int, end: int) -> Any:
        part = (begin, end)
        if part not in self._graphs:
            self._graphs[part] = self._driver.record(self._nodes(*part))
        return self._graphs[part]

    def _blocks(self, begin: int) -> Sequence[StepInputs]:
        return self._inputs if begin == 0 else self._inputs[:1]

    def _tell_hosts(self, begin: int, end: int) -> None:
        """Those whom ops of this part will ask are told that they will be."""
        for i, tell in self._asked:
            if begin <= i < end:
                tell()

    def wait(self) -> None:
        """Until the last submitted replay of this program is done."""
        self._driver.wait(self._done)
        if self._tier is not None:
            self._tier.over(self._number)

    def _nodes(self, begin: int, end: int) -> list[Launch]:
        found = self._between(begin, end)
        begins = [] if self._tier is None else self._tier.prologue(found)
        copies = [block.copy_launch() for block in self._blocks(begin)]
        return [*copies, *begins, *found]

    def _between(self, begin: int, end: int) -> list[Launch]:
        found: list[Launch] = []
        for part in self.parts:
            if begin <= part.begin and part.end <= end:
                found += part.launches
            else:
                for i in range(max(begin, part.begin), min(end, part.end)):
                    found += self._alone(i)
        return found

    def check(self) -> None:
        """Raises what kernels reported since the last check."""
        if bits := self.reported():
            raise_fault(bits, self._program, self._failure())

    def reported(self) -> int:
        """Fault bits (native/cpu/op.h) reported since they were last read."""
        if self._faults.array.tobytes() == _NO_FAULTS:
            return 0
        seen = self._faults.array.view(np.uint32)
        bits = sum(1 << i for i, fault in enumerate(seen) if fault)
        seen[:] = 0
        return bits

    def timeline(self, repeats: int = 5) -> list[tuple[str, str, float]]:
        """(op kinds, kernel, microseconds) of every node of the whole program, with the inputs as they are now."""
        nodes = [(self._kinds(part), n) for part in self.parts for n in part.launches]
        for _ in range(repeats):
            self._tell_hosts(0, len(self._program))
        number = 0 if self._tier is None else self._tier.start(self._workers)
        times = self._driver.timeline([n for _, n in nodes], repeats)
        if self._tier is not None:
            self._tier.over(number)
        return [(kind, str(n.kernel), us) for (kind, n), us in zip(nodes, times, strict=True)]

    def _kinds(self, part: Part) -> str:
        return " + ".join(op.kind for op in self._program.ops[part.begin : part.end])

    @property
    def launches(self) -> list[Launch]:
        """All nodes in order, the copy of inputs left out."""
        return [launch for part in self.parts for launch in part.launches]
