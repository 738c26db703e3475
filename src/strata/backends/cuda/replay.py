"""A lowered program: graphs of its parts, recorded when first asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strata.backends.base import raise_fault
from strata.backends.cuda.driver import Driver, HostMemory, Launch
from strata.backends.cuda.inputs import StepInputs
from strata.ops.program import Program


class CudaReplay:
    """`launches[i]` belong to op i."""

    def __init__(
        self,
        driver: Driver,
        program: Program,
        launches: Sequence[Sequence[Launch]],
        inputs: StepInputs,
        faults: HostMemory,
    ):
        self._driver, self._program, self._launches = driver, program, launches
        self._inputs, self._faults = inputs, faults
        self._graphs: dict[tuple[int, int], Any] = {}

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Ops [begin, end): starts them and waits; raises FaultError when a kernel reported one."""
        self.submit(begin, end)
        self._driver.synchronize()
        self.check()

    def submit(self, begin: int = 0, end: int | None = None) -> None:
        """Starts ops [begin, end) with the inputs as they are now."""
        part = (begin, len(self._program) if end is None else end)
        if part not in self._graphs:
            launches = [launch for op in self._launches[slice(*part)] for launch in op]
            self._graphs[part] = self._driver.record([self._inputs.copy_launch(), *launches])
        self._inputs.snapshot()
        self._driver.replay(self._graphs[part])

    def check(self) -> None:
        """Raises what kernels reported since the last check."""
        if bits := self.reported():
            raise_fault(bits, self._program)

    def reported(self) -> int:
        """Fault bits (native/cpu/op.h) reported since they were last read."""
        seen = self._faults.array.view(np.uint32)
        bits = sum(1 << i for i, fault in enumerate(seen) if fault)
        seen[:] = 0
        return bits

    def timeline(self, repeats: int = 5) -> list[tuple[str, str, float]]:
        """(op kind, kernel, microseconds) of every node of the whole program, with the inputs as they are now."""
        nodes = [
            (op.kind, n) for op, part in zip(self._program.ops, self._launches, strict=True) for n in part
        ]
        times = self._driver.timeline([n for _, n in nodes], repeats)
        return [(kind, str(n.kernel), us) for (kind, n), us in zip(nodes, times, strict=True)]

    @property
    def launches(self) -> list[Launch]:
        """All nodes in order, the copy of inputs left out."""
        return [launch for op in self._launches for launch in op]
