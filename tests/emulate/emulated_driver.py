"""The CUDA backend's driver protocol on the emulated device, so that all of the backend runs without a GPU."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import emulator
import numpy as np
from numpy.typing import NDArray

from strata.backends.cuda.driver import COMPUTE, DeviceProperties, HostMemory, Kernel, Launch, Source

_modules: dict[tuple[Source, int], emulator.Module] = {}


class EmulatedDriver:
    """Launches run where they are started. `seed` and `watch`: see `emulator.Call.run`; `watch` concerns replays."""

    def __init__(self, arch: int = 900, seed: int = 0) -> None:
        name = f"sm_{arch // 10}"
        self.properties = DeviceProperties("emulated", name, 4, 1 << 40, 227 << 10, 1 << 20)
        self.arch, self.seed, self.watch = arch, seed, emulator.NO_WATCH
        self.launched: list[Launch] = []  # of the last replay
        self._memory: list[emulator.Memory] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def allocate(self, nbytes: int) -> int:
        memory = emulator.Memory(nbytes, align=256, zeroed=True)
        self._memory.append(memory)
        return int(memory.pointer)

    def allocate_host(self, nbytes: int) -> HostMemory:
        address = self.allocate(nbytes)
        return HostMemory(address, self._memory[-1].bytes)

    def register(self, address: int, nbytes: int) -> int:
        return address

    def unregister(self, address: int) -> None:
        pass

    def free_memory(self) -> int:
        return self.properties.memory - sum(m.size for m in self._memory)

    def upload(self, address: int, data: NDArray[Any]) -> None:
        assert data.flags.c_contiguous
        self._bytes(address, data.nbytes)[:] = data.reshape(-1).view(np.uint8)

    def download(self, address: int, out: NDArray[Any]) -> None:
        assert out.flags.c_contiguous
        out.reshape(-1).view(np.uint8)[:] = self._bytes(address, out.nbytes)

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        sources = {k.source for k in kernels if (k.source, self.arch) not in _modules}
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._module, sources))

    def record(self, launches: Sequence[Launch], stream: int = COMPUTE) -> Any:
        self.prepare([launch.kernel for launch in launches])
        ordered = beside_late(launches)
        return ordered, [self._call(launch) for launch in ordered]

    def replay(self, graph: Any, stream: int = COMPUTE) -> None:
        self.launched, calls = graph
        for launch, call in zip(self.launched, calls, strict=True):
            self._run(launch, call, self.watch)

    def launch(self, launch: Launch) -> None:
        self._run(launch, self._call(launch), emulator.NO_WATCH)

    def synchronize(self) -> None:
        emulator.check_memory()

    def event(self, timed: bool = False) -> list[float]:
        return [0.0]

    def signal(self, event: list[float], stream: int = COMPUTE) -> None:
        event[0] = time.perf_counter()

    def wait_on(self, event: list[float], stream: int = COMPUTE) -> None:
        pass

    def wait(self, event: list[float]) -> None:
        pass

    def passed(self, event: list[float]) -> bool:
        return True

    def mark(self) -> list[float]:
        return [time.perf_counter()]

    def elapsed(self, first: list[float], last: list[float]) -> float:
        return (last[0] - first[0]) * 1e6

    def timeline(self, launches: Sequence[Launch], repeats: int) -> list[float]:
        seen = []
        for _ in range(repeats):
            marks = [self.mark()]
            for launch in launches:
                self.launch(launch)
                marks.append(self.mark())
            seen.append([self.elapsed(a, b) for a, b in pairwise(marks)])
        return [float(x) for x in np.median(np.array(seen), axis=0)]

    def _run(self, launch: Launch, call: emulator.Call, watch: int) -> None:
        if watch == emulator.ENFORCE and not launch.dependent:
            watch = emulator.NO_WATCH
        try:
            call.run(self.seed, watch)
        except emulator.EmulatedFault as fault:
            raise emulator.EmulatedFault(f"{launch.kernel}: {fault}") from None

    def _module(self, source: Source) -> emulator.Module:
        key = source, self.arch
        if key not in _modules:
            _modules[key] = emulator.Module(source.text, self.arch)
        return _modules[key]

    def _call(self, launch: Launch) -> emulator.Call:
        kernel = self._module(launch.kernel.source).kernel(launch.kernel.entry)
        values = [np.array([a]) for a in launch.args]
        args = [(v, v.ctypes.data) for v in values]
        return emulator.Call(kernel, launch.grid, (launch.block,), args, launch.shared)

    def _bytes(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        for memory in self._memory:
            if memory.pointer <= address and address + nbytes <= memory.pointer + memory.size:
                at = address - memory.pointer
                return memory.bytes[at : at + nbytes]
        raise emulator.EmulatedFault(f"{nbytes} bytes at {address:#x} lie in no allocation")


def beside_late(launches: Sequence[Launch]) -> list[Launch]:
    """Launches that run beside others as late as they may, so that what reads their results too early shows."""
    found: list[Launch] = []
    waiting: list[Launch] = []
    for launch in launches:
        if launch.joins:
            found += waiting
            waiting = []
        (waiting if launch.beside else found).append(launch)
    return found + waiting
