"""The one thread that owns the engine. Others send it messages and get messages back; nothing else is shared."""

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.engine import Engine, Request, SamplingParams, Status
from strata.errors import FaultError, StrataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tokens:
    """New tokens of a request; `finish_reason` (stop, length, abort) comes with the last."""

    token_ids: list[int]
    finish_reason: str | None = None


Event = Tokens | StrataError


@dataclass(eq=False)
class Ticket:
    """A request as its client sees it: events arrive on `events`, in the client's event loop."""

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    loop: asyncio.AbstractEventLoop
    events: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)
    request: Request | None = None  # the engine thread's
    told: int = 0  # tokens sent so far; the engine thread's


class EngineThread:
    """Runs steps while there is work and sleeps when there is none."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.num_steps = 0
        self._inbox: queue.SimpleQueue[tuple[str, Ticket | None]] = queue.SimpleQueue()
        self._tickets: list[Ticket] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def num_running(self) -> int:
        """Requests in the engine."""
        return len(self._tickets)

    @property
    def alive(self) -> bool:
        """Whether requests can still be served."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its present step; requests still open end with an abort."""
        self._inbox.put(("stop", None))
        self._thread.join()

    def submit(self, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> Ticket:
        """Queues a request from a coroutine."""
        ticket = Ticket(prompt_token_ids, sampling, asyncio.get_running_loop())
        self._inbox.put(("add", ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ends a request within a step; no event follows."""
        self._inbox.put(("cancel", ticket))

    def _run(self) -> None:
        while self._take_messages():
            try:
                self.engine.step()
                self.num_steps += 1
            except FaultError as fault:
                log.error("step failed: %s", fault)
                self._end_all(fault)
            except Exception:
                log.exception("the engine thread met an error that it does not know")
                self._end_all(FaultError("the engine failed; the server's log says why"))
            self._tell()
        self._end_all(FaultError("the server is stopping"))

    def _take_messages(self) -> bool:
        """Handles all messages, waiting for one when idle; False when told to stop."""
        while not self._tickets or not self._inbox.empty():
            verb, ticket = self._inbox.get()
            if verb == "stop" or ticket is None:
                return False
            if verb == "add":
                self._add(ticket)
            elif ticket in self._tickets and ticket.request is not None:
                self.engine.abort(ticket.request)
                self._tickets.remove(ticket)
        return True

    def _add(self, ticket: Ticket) -> None:
        try:
            ticket.request = self.engine.add(ticket.prompt_token_ids, ticket.sampling)
            self._tickets.append(ticket)
        except StrataError as error:
            _send(ticket, error)

    def _tell(self) -> None:
        for ticket in list(self._tickets):
            request = ticket.request
            assert request is not None
            fresh = request.output_token_ids[ticket.told :]
            ticket.told += len(fresh)
            if request.status is Status.FINISHED:
                self._tickets.remove(ticket)
            if fresh or request.status is Status.FINISHED:
                _send(ticket, Tokens(fresh, request.finish_reason))

    def _end_all(self, error: StrataError) -> None:
        for ticket in self._tickets:
            if ticket.request is not None:
                self.engine.abort(ticket.request)
            _send(ticket, error)
        self._tickets.clear()


def _send(ticket: Ticket, event: Event) -> None:
    if not ticket.loop.is_closed():
        ticket.loop.call_soon_threadsafe(ticket.events.put_nowait, event)
