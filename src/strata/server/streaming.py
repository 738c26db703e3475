"""Streams of several sources, with signs of life, and their end when the client has gone."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from strata.errors import StrataError

T = TypeVar("T")

_LOOK_FOR_CLIENT = 0.1  # seconds between looks whether a client that waits for a whole answer is still there


def sse(data: Any, name: str | None = None) -> str:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


def event_stream(events: AsyncIterator[str]) -> StreamingResponse:
    """An answer that comes as server-sent events; proxies are asked to hold nothing back."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(index, item) of all sources as they come; when one fails or the iteration is left, all are closed."""
    pending = {asyncio.ensure_future(_next(source)): i for i, source in enumerate(sources)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                index = pending.pop(future)
                found = future.result()
                if found:
                    pending[asyncio.ensure_future(_next(sources[index]))] = index
                    yield index, found[0]
    finally:
        for future in pending:
            future.cancel()
        for future in pending:
            with contextlib.suppress(asyncio.CancelledError, StrataError):
                await future
        for source in sources:
            await source.aclose()


async def kept_alive(
    items: AsyncGenerator[T, None], seconds: float, request: Request | None = None
) -> AsyncGenerator[T | None, None]:
    """The items, and None whenever `seconds` have passed without one; ends early when the client of `request` has gone.
    A stream needs no such look: writing to it fails by itself."""
    loop = asyncio.get_running_loop()
    following = asyncio.ensure_future(_next(items))
    beat = loop.time() + seconds
    try:
        while True:
            wait = beat - loop.time() if request is None else _LOOK_FOR_CLIENT
            done, _ = await asyncio.wait([following], timeout=max(wait, 0))
            if done:
                found = following.result()
                if not found:
                    return
                following = asyncio.ensure_future(_next(items))
                yield found[0]
                beat = loop.time() + seconds
            elif request is not None and await request.is_disconnected():
                return
            elif loop.time() >= beat:
                beat = loop.time() + seconds
                yield None
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError, StrataError):
            await following
        await items.aclose()


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    async for item in items:
        return (item,)
    return None
