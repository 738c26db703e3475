"""A lowered program: graphs of its parts, recorded when first asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata.backends.base import raise_fault
from strata.backends.cuda.driver import Driver, HostMemory, Launch
from strata.backends.cuda.inputs import StepInputs
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
    its last, by those that begin with the first op."""

    def __init__(
        self,
        driver: Driver,
        program: Program,
        parts: Sequence[Part],
        alone: Callable[[int], list[Launch]],
        inputs: Sequence[StepInputs],
        faults: HostMemory,
    ):
        self._driver, self._program, self._parts, self._alone = driver, program, parts, alone
        self._inputs, self._faults = inputs, faults
        self._graphs: dict[tuple[int, int], Any] = {}
        self._done = driver.event()

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Ops [begin, end): starts them and waits; raises FaultError when a kernel reported one."""
        self.submit(begin, end)
        self.wait()
        self.check()

    def submit(self, begin: int = 0, end: int | None = None) -> None:
        """Starts ops [begin, end) with the inputs as they are now."""
        part = (begin, len(self._program) if end is None else end)
        if part not in self._graphs:
            copies = [block.copy_launch() for block in self._blocks(begin)]
            self._graphs[part] = self._driver.record([*copies, *self._between(*part)])
        for block in self._blocks(begin):
            block.snapshot()
        self._driver.replay(self._graphs[part])
        self._driver.signal(self._done)

    def _blocks(self, begin: int) -> Sequence[StepInputs]:
        return self._inputs if begin == 0 else self._inputs[:1]

    def wait(self) -> None:
        """Until the last submitted replay of this program is done."""
        self._driver.wait(self._done)

    def _between(self, begin: int, end: int) -> list[Launch]:
        found: list[Launch] = []
        for part in self._parts:
            if begin <= part.begin and part.end <= end:
                found += part.launches
            else:
                for i in range(max(begin, part.begin), min(end, part.end)):
                    found += self._alone(i)
        return found

    def check(self) -> None:
        """Raises what kernels reported since the last check."""
        if bits := self.reported():
            raise_fault(bits, self._program)

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
        nodes = [(self._kinds(part), n) for part in self._parts for n in part.launches]
        times = self._driver.timeline([n for _, n in nodes], repeats)
        return [(kind, str(n.kernel), us) for (kind, n), us in zip(nodes, times, strict=True)]

    def _kinds(self, part: Part) -> str:
        return " + ".join(op.kind for op in self._program.ops[part.begin : part.end])

    @property
    def launches(self) -> list[Launch]:
        """All nodes in order, the copy of inputs left out."""
        return [launch for part in self._parts for launch in part.launches]
