"""Requests that wait: those moved out of the way first, then client by client in the order they came."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from strata.engine.fairness import FairShare
from strata.engine.request import Request
from strata.errors import BusyError


@dataclass(frozen=True)
class QueuePlace:
    """A waiting request's place, 1 being next, and the estimated seconds until it is started."""

    position: int
    seconds: float


@dataclass(frozen=True)
class QueueLimits:
    """Requests that may be open in all and of one client, running ones included; 0: any number."""

    open: int = 0
    per_client: int = 0


class WaitingRoom:
    """The queue of a scheduler."""

    def __init__(self, share: FairShare, limits: QueueLimits, parallel: int):
        self._share, self._limits, self._parallel = share, limits, parallel
        self._queues: dict[str, deque[Request]] = {}
        self._preempted: deque[Request] = deque()
        self._open = 0
        self._seconds = 0.0  # that a request takes from start to end, lately

    def __len__(self) -> int:
        return len(self._preempted) + sum(map(len, self._queues.values()))

    def __contains__(self, request: Request) -> bool:
        return request in self._preempted or request in self._queues.get(request.client, ())

    def add(self, request: Request) -> None:
        """Queues a request; BusyError where a limit is met."""
        limits, client = self._limits, request.client
        if limits.open and self._open >= limits.open:
            raise BusyError(f"{self._open} requests are open; --max-queue allows {limits.open}")
        if limits.per_client and self._share.num_open(client) >= limits.per_client:
            raise BusyError(
                f"{limits.per_client} requests of this key are open, as many as --max-per-key allows"
            )
        self._share.enter(client)
        self._open += 1
        self._queues.setdefault(client, deque()).append(request)

    def put_back(self, request: Request) -> None:
        """A request that had to make room; it goes on before others start."""
        self._preempted.append(request)

    def in_turn(self) -> Iterator[Request]:
        """In the order in which to start: those that made room, then clients' by turns, the least served first."""
        yield from list(self._preempted)
        queues = [deque(self._queues[c]) for c in sorted(self._queues, key=self._share.served)]
        while queues:
            for queue in queues:
                yield queue.popleft()
            queues = [queue for queue in queues if queue]

    def remove(self, request: Request) -> None:
        """Takes a request out."""
        if request in self._preempted:
            self._preempted.remove(request)
            return
        queue = self._queues[request.client]
        queue.remove(request)
        if not queue:
            del self._queues[request.client]

    def closed(self, request: Request) -> None:
        """A request ended, wherever it stood."""
        self._open -= 1
        self._share.charge(request.client, len(request.output_token_ids))
        self._share.leave(request.client)
        if request.timings.started and request.finish_reason != "abort":
            seconds = request.timings.finished - request.timings.started
            self._seconds += (seconds - self._seconds) * (0.2 if self._seconds else 1.0)

    def place(self, request: Request) -> QueuePlace | None:
        """Where a request stands, as if clients took turns; None when it does not wait here."""
        if request not in self:
            return None
        ahead = list(self._preempted)
        turn = 0
        if request not in ahead:
            own = self._queues[request.client].index(request)
            turn = sum(min(len(q), own + (c != request.client)) for c, q in self._queues.items())
        else:
            ahead = ahead[: ahead.index(request)]
        position = len(ahead) + turn + 1
        return QueuePlace(position, position * self._seconds / self._parallel)
