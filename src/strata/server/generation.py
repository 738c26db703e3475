"""One answer on the server's side: token events to pieces, counts and times; cancelled when its client leaves."""

import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import cast

from strata.engine import QueuePlace, Timings
from strata.errors import StrataError
from strata.server.call import Call
from strata.server.engine_thread import EngineThread
from strata.server.ticket import Ticket, Tokens
from strata.text import Tokenizer
from strata.text.chat import Event


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability and those of the likeliest, (token id, logprob) in falling order."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Piece:
    """What is new in an answer; `finish_reason` (stop, length or tool_calls) comes with the last."""

    events: list[Event]
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


class Generation:
    """Iterate `pieces` once; leaving the iteration early ends the request within a step."""

    def __init__(
        self,
        engine: EngineThread,
        tokenizer: Tokenizer,
        call: Call,
        index: int = 0,
        on_gap: Callable[[float], object] = lambda _: None,
    ):
        self.call, self.index, self._on_gap = call, index, on_gap
        self.reader = call.reader(tokenizer)
        self._engine = engine
        self._ticket: Ticket | None = None
        self.timings = Timings()
        self.finish_reason = "abort"

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.call.prompt_token_ids)

    @property
    def num_cached_tokens(self) -> int:
        """Of which were not read again."""
        request = self._ticket.request if self._ticket else None
        return request.num_cached_tokens if request else 0

    async def queue_place(self) -> QueuePlace | None:
        """Where it stands before it is started."""
        return await self._engine.queue_place(self._ticket) if self._ticket else None

    @property
    def context_is_full(self) -> bool:
        """Whether the answer ended where the context did, before the number of tokens that was asked for."""
        return not self.reader.stopped and self.reader.num_tokens < self.call.wishes.sampling.max_tokens

    async def start(self) -> None:
        """Queues it; raises the StrataError that refuses it."""
        self._ticket = ticket = self._engine.submit(self.call.submission(self.index))
        # a stream whose client has gone before its first piece is never iterated
        self._give_up = weakref.finalize(self, self._engine.cancel, ticket)
        await ticket.added

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The answer as it becomes certain; raises the StrataError that ended the request."""
        last = 0.0
        try:
            if self._ticket is None:
                await self.start()
            ticket = cast(Ticket, self._ticket)
            while True:
                event = await ticket.events.get()
                if isinstance(event, StrataError):
                    raise event
                now = perf_counter()
                if event.token_ids:
                    self._note_gap(now, last, len(event.token_ids))
                    last = now
                piece = self._piece(event)
                if piece.events or piece.logprobs or piece.finish_reason:
                    yield piece
                if piece.finish_reason:
                    return
        except StrataError:
            self.finish_reason = "error"
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self.timings.finished = perf_counter()
        if self._ticket is not None:
            request = self._ticket.request
            self.timings.started = request.timings.started if request else 0.0
            self._give_up()

    def _note_gap(self, now: float, last: float, count: int) -> None:
        if last:
            for _ in range(count):  # drafts bring several at once
                self._on_gap((now - last) / count)
        else:
            self.timings.first_token = now

    def _piece(self, event: Tokens) -> Piece:
        events, used = [], 0
        for token in event.token_ids:
            if self.reader.stopped:
                break
            events += self.reader.push(token)
            used += 1
        logprobs = self._logprobs(event, used)
        if not self.reader.stopped and event.finish_reason is None:
            return Piece(events, logprobs)
        events += self.reader.finish()
        self.finish_reason = self._reason()
        return Piece(events, logprobs, self.finish_reason)

    def _logprobs(self, event: Tokens, used: int) -> list[TokenLogprob]:
        """Of the tokens that gave text."""
        ends, tops = self.call.wishes.sampling.stop_token_ids, event.top_logprobs or [[]] * used
        found = zip(event.token_ids[:used], event.logprobs[:used], tops[:used], strict=False)
        return [TokenLogprob(*entry) for entry in found if entry[0] not in ends]

    def _reason(self) -> str:
        if self.reader.repeats or not self.reader.stopped:
            return "length"
        return "tool_calls" if self.reader.calls and self.reader.stop_sequence is None else "stop"
