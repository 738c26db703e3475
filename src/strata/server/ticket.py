"""Messages between the engine's thread and the clients' event loop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.engine import Pooling, Request, SamplingParams, TokenMask
from strata.errors import StrataError


@dataclass(frozen=True)
class Tokens:
    """New tokens of a request, with their log-probabilities where they were asked for; `finish_reason` (stop, length,
    abort) comes with the last."""

    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)


Event = Tokens | StrataError


@dataclass(frozen=True)
class Submission:
    """What `Engine.add` takes."""

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    client: str = ""
    mask: TokenMask | None = None
    cache_points: tuple[int, ...] = ()
    pooling: Pooling | None = None


@dataclass(eq=False)
class Ticket:
    """A request as its client sees it: `added` says that it was queued or raises what refuses it, then events arrive on
    `events`, all in the client's event loop."""

    submission: Submission
    loop: asyncio.AbstractEventLoop
    added: "asyncio.Future[None]"
    events: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)
    request: Request | None = None  # the engine thread's; its counts and timings may be read by anyone
    told: int = 0  # tokens sent so far; the engine thread's


def event_of(request: Request, told: int) -> Event:
    """What a request has that its client was not told: its tokens from `told` on, or its error."""
    if request.error is not None:
        return request.error
    return Tokens(
        request.output_token_ids[told:],
        request.finish_reason,
        request.logprobs[told:],
        request.top_logprobs[told:],
    )


def admit(ticket: Ticket, refusal: StrataError | None) -> None:
    """Tells a client that its request was queued, or why not."""

    def tell() -> None:
        if ticket.added.done():
            return
        if refusal is None:
            ticket.added.set_result(None)
        else:
            ticket.added.set_exception(refusal)

    if not ticket.loop.is_closed():
        ticket.loop.call_soon_threadsafe(tell)


def send(ticket: Ticket, event: Event) -> None:
    """Tells one client."""
    deliver(ticket.loop, [(ticket, event)])


def deliver(loop: asyncio.AbstractEventLoop, batch: list[tuple[Ticket, Event]]) -> None:
    """Tells clients of one event loop, all by one message."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(_receive, batch)


def _receive(batch: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in batch:
        ticket.events.put_nowait(event)
