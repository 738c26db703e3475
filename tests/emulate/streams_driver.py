"""The emulated device with two streams that may run at any time: one goes as far as it may before the other begins, so
that what one stream should have waited for shows."""

from collections import Counter
from typing import Any

from late_driver import DeferredDriver

from strata.backends.cuda.driver import COMPUTE, COPIES


class StreamsDriver(DeferredDriver):
    """Graphs, signals and waits stand in two queues until the host needs a result; `first` is the stream that goes on
    whenever it can."""

    def __init__(self, first: int = COMPUTE) -> None:
        super().__init__()
        self._order = (COPIES, COMPUTE) if first == COPIES else (COMPUTE, COPIES)
        self._queues: tuple[list[Any], list[Any]] = [], []
        self._signals: Counter[int] = Counter()  # by event: asked for, and passed
        self._passed: Counter[int] = Counter()

    def replay(self, graph: Any, stream: int = COMPUTE) -> None:
        self._queues[stream].append(("run", graph, 0))

    def signal(self, event: list[float], stream: int = COMPUTE) -> None:
        self._signals[id(event)] += 1
        self._queues[stream].append(("signal", event, self._signals[id(event)]))

    def wait_on(self, event: list[float], stream: int = COMPUTE) -> None:
        self._queues[stream].append(("wait", event, self._signals[id(event)]))

    def wait(self, event: list[float]) -> None:
        while not self.passed(event):
            self._one()

    def passed(self, event: list[float]) -> bool:
        return self._passed[id(event)] >= self._signals[id(event)]

    def synchronize(self) -> None:
        while any(self._queues):
            self._one()
        super().synchronize()

    def _one(self) -> None:
        """Takes the next entry of the first stream that may go on."""
        for stream in self._order:
            queue = self._queues[stream]
            if queue and not self._held(*queue[0]):
                kind, what, number = queue.pop(0)
                if kind == "run":
                    super().replay(what, stream)
                elif kind == "signal":
                    super().signal(what, stream)
                    self._passed[id(what)] = number
                return
        raise AssertionError("both streams wait for each other")

    def _held(self, kind: str, what: Any, number: int) -> bool:
        return kind == "wait" and self._passed[id(what)] < number
