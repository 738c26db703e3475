"""The one thread that owns the engine. Others send it messages and get messages back; nothing else is shared."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from strata.engine import Engine, QueuePlace, Request, Status
from strata.errors import FaultError, StrataError, UsageError
from strata.server.ticket import Event, Submission, Ticket, admit, deliver, event_of, send

log = logging.getLogger(__name__)

T = TypeVar("T")

_ASK_SECONDS = 0.1


class EngineThread:
    """Runs steps while there is work and sleeps when there is none.

    With `reload` and `idle_seconds`, an engine that had nothing to do for so long is dropped, with its memory, and made
    anew when somebody asks.
    """

    def __init__(self, engine: Engine, reload: Callable[[], Engine] | None = None, idle_seconds: float = 0.0):
        self._engine: Engine | None = engine
        self._reload, self._idle_seconds = reload, idle_seconds if reload else 0.0
        self.num_steps = 0
        self.prompt_seconds = self.decode_seconds = 0.0  # of all steps
        self.step_began: float | None = None  # time.monotonic() of the step that runs
        self._worked = time.monotonic()  # when there was last something to do
        self._inbox: queue.SimpleQueue[Callable[[], bool]] = queue.SimpleQueue()
        self._tickets: list[Ticket] = []
        self._new: set[Ticket] = set()  # on their way into the engine
        self._refusal: StrataError | None = None  # why no more requests are taken
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def engine(self) -> Engine:
        """The engine; loads it where it was dropped. For the engine thread, and for tests while it is idle."""
        if self._engine is None:
            assert self._reload is not None
            log.info("loading the model again")
            self._engine = self._reload()
        return self._engine

    @property
    def loaded(self) -> bool:
        """Whether the model is in memory."""
        return self._engine is not None

    @property
    def open_requests(self) -> list[Request]:
        """Requests in the engine; their counts and timings may be read by anyone."""
        return [t.request for t in list(self._tickets) if t.request is not None]

    @property
    def num_running(self) -> int:
        """Requests that have left the queue."""
        return sum(
            t.request is not None and t.request.status is not Status.WAITING for t in list(self._tickets)
        )

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._tickets) - self.num_running

    @property
    def num_open(self) -> int:
        """Requests in the engine."""
        return len(self._tickets)

    @property
    def alive(self) -> bool:
        """Whether requests can be served."""
        return self._thread.is_alive() and self._refusal is None

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Ends the thread after its present step; requests still open end with an error."""
        self._inbox.put(lambda: False)
        self._thread.join(seconds)

    def submit(self, submission: Submission) -> Ticket:
        """Queues a request from a coroutine."""
        loop = asyncio.get_running_loop()
        ticket = Ticket(submission, loop, loop.create_future())
        if self._refusal is not None:
            ticket.added.set_exception(self._refusal)
        else:
            self._new.add(ticket)
            self._inbox.put(lambda: self._add(ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ends a request within a step; no event follows."""
        self._inbox.put(lambda: self._cancel(ticket))

    async def queue_place(self, ticket: Ticket) -> QueuePlace | None:
        """Where a request stands that has not been started; None where a step keeps the engine from telling soon."""
        request = ticket.request
        if request is None or request.status is not Status.WAITING or self._refusal is not None:
            return None
        return await self.ask_soon(lambda engine: engine.queue_place(request), None)

    async def ask_soon(self, question: Callable[[Engine], T], otherwise: T) -> T:
        """As `ask`, but `otherwise` where a step takes too long, or the model is not in memory."""
        if self._engine is None:
            return otherwise
        try:
            return await asyncio.wait_for(self.ask(question), _ASK_SECONDS)
        except (TimeoutError, UsageError):
            return otherwise

    def ask(self, question: Callable[[Engine], T]) -> "asyncio.Future[T]":
        """The answer of a function that is called with the engine between two steps, from a coroutine; UsageError where
        the model is not in memory, for asking does not load it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def told(give: Callable[[Any], None], value: Any) -> None:
            loop.call_soon_threadsafe(lambda: None if answer.done() else give(value))

        def call() -> bool:
            try:
                if self._engine is None:
                    raise UsageError("the model is not in memory")
                told(answer.set_result, question(self._engine))
            except Exception as error:
                told(answer.set_exception, error)
            return True

        self._inbox.put(call)
        return answer

    def set_stuck(self, stuck: bool) -> None:
        """The watchdog's word: open requests end with an error, and new ones are refused until it is taken back."""
        self._refusal = refusal = FaultError("a step of the engine does not end") if stuck else None
        if refusal is not None:
            for ticket in list(self._new):
                admit(ticket, refusal)
            for ticket in list(self._tickets):
                send(ticket, refusal)

    def _run(self) -> None:
        while self._take_messages():
            self.step_began = time.monotonic()
            try:
                output = self.engine.step()
                self.num_steps += 1
                self.prompt_seconds += output.prompt_ms * 1e-3
                self.decode_seconds += output.decode_ms * 1e-3
            except FaultError as fault:
                log.error("step failed: %s", fault)
                self._end_all(fault)
            except Exception:
                log.exception("the engine thread met an error that it does not know")
                self._end_all(FaultError("the engine failed; the server's log says why"))
            finally:
                self.step_began, self._worked = None, time.monotonic()
            self._tell()
        self._refusal = FaultError("the server is stopping")
        while not self._inbox.empty():
            self._inbox.get()()
        self._end_all(self._refusal)
        self._close()

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _take_messages(self) -> bool:
        """Handles all messages, waiting for one when there is nothing to do; False when told to stop."""
        while not self._inbox.empty() or not (self._engine and self._engine.has_work):
            try:
                handle = self._inbox.get(timeout=self._patience())
            except queue.Empty:
                log.info("nothing was asked for %g s: the model leaves memory", self._idle_seconds)
                self._close()
                continue
            if not handle():
                return False
        return True

    def _patience(self) -> float | None:
        """Seconds to wait for a message before the model leaves memory; None: for ever. To ask is not to work."""
        if self._engine is None or not self._idle_seconds:
            return None
        return max(self._worked + self._idle_seconds - time.monotonic(), 0.0)

    def _add(self, ticket: Ticket) -> bool:
        s = ticket.submission
        try:
            if self._refusal is not None:
                raise self._refusal
            ticket.request = self.engine.add(
                s.prompt_token_ids,
                s.sampling,
                client=s.client,
                mask=s.mask,
                cache_points=s.cache_points,
                pooling=s.pooling,
            )
            self._tickets.append(ticket)
            self._worked = time.monotonic()
            admit(ticket, None)
        except StrataError as error:
            admit(ticket, error)
        except Exception:  # a model file that has gone, for example
            log.exception("a request could not be added")
            admit(ticket, FaultError("the engine failed; the server's log says why"))
        self._new.discard(ticket)
        return True

    def _cancel(self, ticket: Ticket) -> bool:
        if ticket in self._tickets and ticket.request is not None:
            self.engine.abort(ticket.request)
            self._tickets.remove(ticket)
        return True

    def _tell(self) -> None:
        """One message a step and event loop: waking a loop costs more than all else here."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Event]]] = {}
        ended = []
        for ticket in self._tickets:
            request = cast(Request, ticket.request)
            told, count = ticket.told, len(request.output_token_ids)
            over = request.status is Status.FINISHED
            if count > told or over:
                ticket.told = count
                batches.setdefault(ticket.loop, []).append((ticket, event_of(request, told)))
            if over:
                ended.append(ticket)
        for ticket in ended:
            self._tickets.remove(ticket)
        for loop, batch in batches.items():
            deliver(loop, batch)

    def _end_all(self, error: StrataError) -> None:
        for ticket in self._tickets:
            if ticket.request is not None:
                self.engine.abort(ticket.request)
            send(ticket, error)
        self._tickets.clear()
