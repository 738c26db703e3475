"""The one thread that owns the engine. Others send it messages and get messages back; nothing else is shared."""

import asyncio
import contextlib
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from strata import hw
from strata.engine import Engine, QueuePlace, Request, Status
from strata.errors import DeviceError, FaultError, StrataError, UsageError
from strata.server.ticket import Event, Submission, Ticket, admit, deliver, event_of, send

log = logging.getLogger(__name__)

T = TypeVar("T")

_ASK_SECONDS = 0.1
_LOAD_AGAIN = 30.0  # seconds after a device failed and the model could not be loaded again


class EngineThread:
    """Runs steps while there is work and sleeps when there is none.

    With `reload` and `idle_seconds`, an engine that had nothing to do for so long is dropped, with its memory, and made
    anew when somebody asks. So is one whose device failed, after its requests have ended with the error.
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
        self.trouble: StrataError | None = None  # why there is no engine where there should be one
        self._load_at = 0.0  # time.monotonic() of the next try, where there is trouble
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def engine(self) -> Engine:
        """The engine; loads it where it was dropped. For the engine thread, and for tests while it is idle."""
        if self._engine is None:
            assert self._reload is not None
            log.info("loading the model again")
            self._load_at = time.monotonic() + _LOAD_AGAIN
            try:
                self._engine = self._reload()
            except StrataError as error:
                self.trouble = error
                log.error("the model cannot be loaded: %s", error)
                raise
            self.trouble, self._worked = None, time.monotonic()
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
        """Whether requests can be served, as far as is known."""
        return self._thread.is_alive() and self._refusal is None and self.trouble is None

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
        while self._safely(self._turn):
            pass
        self._refusal = FaultError("the server is stopping")
        while not self._inbox.empty():
            self._inbox.get()()
        self._safely(lambda: self._end_all(FaultError("the server is stopping")))
        self._safely(self._close)

    def _turn(self) -> bool:
        """Messages, then a step; False when told to stop."""
        if not self._take_messages():
            return False
        self.step_began = time.monotonic()
        try:
            output = self.engine.step()
        finally:
            self.step_began, self._worked = None, time.monotonic()
        self.num_steps += 1
        self.prompt_seconds += output.prompt_ms * 1e-3
        self.decode_seconds += output.decode_ms * 1e-3
        self._tell()
        return True

    def _safely(self, work: Callable[[], bool | None]) -> bool:
        """The result of some work (nothing counts as True); an error ends the open requests, and the engine where its
        device failed or it cannot even let them go."""
        try:
            return work() is not False
        except DeviceError as error:
            log.error("the device failed: %s", error)
            self._lose(error)
        except Exception as error:
            fault = (
                error
                if isinstance(error, FaultError)
                else FaultError("the engine failed; the server's log says why")
            )
            log.error("step failed: %s", fault, exc_info=None if fault is error else error)
            try:
                self._end_all(fault)
            except Exception:
                log.exception("the engine could not end its requests")
                self._lose(fault)
        return True

    def _lose(self, error: StrataError) -> None:
        """The engine is given up; open requests end with the error. The model is loaded again, at once or by and by."""
        if self._reload is None:
            self._refusal = error
        else:
            self.trouble, self._load_at = error, 0.0
        for ticket in self._tickets:
            send(ticket, error)
        self._tickets.clear()
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.abandon()
        except Exception:
            log.exception("what was left of the engine could not be given back")
        del engine
        _collect()

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        del engine
        _collect()

    def _take_messages(self) -> bool:
        """Handles all messages, waiting for one when there is nothing to do; False when told to stop."""
        while not self._inbox.empty() or not (self._engine and self._engine.has_work):
            try:
                handle = self._inbox.get(timeout=self._patience())
            except queue.Empty:
                if self._engine is None:
                    self._try_to_load()
                else:
                    log.info("nothing was asked for %g s: the model leaves memory", self._idle_seconds)
                    self._close()
                continue
            if not handle():
                return False
        return True

    def _try_to_load(self) -> None:
        with contextlib.suppress(StrataError):
            _ = self.engine

    def _patience(self) -> float | None:
        """Seconds to wait for a message before the model leaves memory, or is loaded again after a failure; None: for
        ever. To ask is not to work."""
        if self._engine is None and self.trouble is not None and self._reload is not None:
            return max(self._load_at - time.monotonic(), 0.0)
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
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            send(ticket, error)
        for ticket in tickets:
            if ticket.request is not None:
                self.engine.abort(ticket.request)


def _collect() -> None:
    """Gives the memory of an engine back, whose parts know one another."""
    gc.collect()
    hw.give_back()
