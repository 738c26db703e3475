"""The emulated device with work that waits to be done until somebody needs it, as a GPU's may: what the host changes
meanwhile must not change what is computed."""

from typing import Any

import numpy as np
from emulated_driver import EmulatedDriver
from numpy.typing import NDArray

from strata.backends.cuda.driver import COMPUTE, Launch


class DeferredDriver(EmulatedDriver):
    """Copies and single launches come after everything that waits to be done."""

    def upload(self, address: int, data: NDArray[Any]) -> None:
        self.synchronize()
        super().upload(address, data)

    def download(self, address: int, out: NDArray[np.generic]) -> None:
        self.synchronize()
        super().download(address, out)

    def launch(self, launch: Launch) -> None:
        self.synchronize()
        super().launch(launch)


class LateDriver(DeferredDriver):
    """Replays and signals stand in a queue; waiting for an event runs it up to there, copies run all of it."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: list[Any] = []  # graphs and events
        self.most = 0  # replays that stood in the queue at once

    def replay(self, graph: Any, stream: int = COMPUTE) -> None:
        self._queue.append(graph)
        self.most = max(self.most, sum(isinstance(x, tuple) for x in self._queue))

    def signal(self, event: list[float], stream: int = COMPUTE) -> None:
        self._queue.append(event)

    def wait(self, event: list[float]) -> None:
        if any(x is event for x in self._queue):
            last = max(i for i, x in enumerate(self._queue) if x is event)
            self._run_queue(last + 1)

    def passed(self, event: list[float]) -> bool:
        return not any(x is event for x in self._queue)

    def synchronize(self) -> None:
        self._run_queue(len(self._queue))
        super().synchronize()

    def _run_queue(self, count: int) -> None:
        done, self._queue = self._queue[:count], self._queue[count:]
        for entry in done:
            if isinstance(entry, tuple):
                super().replay(entry)
            else:
                super().signal(entry)
