"""Answers of chat and completions: whole, or as chunks while they form."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse

from strata.errors import StrataError
from strata.server.call import Call
from strata.server.errors import openai_error, strata_status
from strata.server.generation import Generation, Piece
from strata.server.service import Service
from strata.server.streaming import event_stream, sse
from strata.server.usage import timings, usage


async def sign_of_life(generation: Generation) -> str:
    """A comment, which clients skip; people who look on see where the request stands."""
    place = await generation.queue_place()
    if place is None:
        return ": keep-alive\n\n"
    return f": keep-alive, number {place.position} in the queue, about {place.seconds:.0f} s\n\n"


class Choice(Protocol):
    """One answer in the words of an endpoint."""

    def opening(self) -> list[dict[str, Any]]:
        """Choices that a stream begins with."""

    def push(self, piece: Piece) -> list[dict[str, Any]]:
        """Takes a piece in; the choices of the chunks that it makes."""

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""


class Answer:
    """All answers of one request; `base` is what every body and chunk carries."""

    def __init__(
        self,
        service: Service,
        calls: Sequence[Call],
        choices: Sequence[Choice],
        prefix: str,
        names: tuple[str, str],
    ):
        self.service, self.choices, self.names = service, choices, names
        self.generations: list[Generation] = service.generations(calls)
        self.num_prompts = len(calls)
        self.request_id = f"{prefix}-{secrets.token_hex(12)}"
        self.base = {
            "id": self.request_id,
            "created": int(time.time()),
            "model": service.model_id,
            "system_fingerprint": "strata",
        }

    async def respond(
        self, request: Request, stream: bool, include_usage: bool
    ) -> JSONResponse | StreamingResponse:
        """The response."""
        if stream:
            await self.service.started(self.generations)
            return event_stream(self._stream(request.url.path, include_usage))
        source = self.service.pieces(self.generations, request.url.path, self.request_id, request)
        async for item in source:
            if item is not None:
                self.choices[item[0]].push(item[1])
        choices = [choice.whole() for choice in self.choices]
        return JSONResponse({**self.base, "object": self.names[0], "choices": choices, **self._costs()})

    async def _stream(self, path: str, include_usage: bool) -> AsyncIterator[str]:
        for choice in self.choices:
            for opening in choice.opening():
                yield self._chunk([opening])
        source = self.service.pieces(self.generations, path, self.request_id)
        try:
            async for item in source:
                if item is None:
                    yield await sign_of_life(self.generations[0])
                    continue
                index, piece = item
                last = {"timings": timings(self.generations[index])} if piece.finish_reason else {}
                for made in self.choices[index].push(piece):
                    yield self._chunk([made], **(last if made.get("finish_reason") else {}))
        except StrataError as error:  # the status has been sent, so the error is an event
            status, code = strata_status(error)
            yield sse(openai_error(status, str(error), code=code))
            return
        finally:
            await source.aclose()
        if include_usage:
            yield self._chunk([], **self._costs())
        yield sse("[DONE]")

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        body = {**self.base, "object": self.names[1], "choices": choices, **more}
        return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"

    def _costs(self) -> dict[str, Any]:
        return {
            "usage": usage(self.generations, self.num_prompts),
            "timings": timings(self.generations[0]),
        }


def stop_extras(generation: Generation) -> dict[str, Any]:
    """vLLM's `stop_reason`: the stop string that was met; "repetition" where the guard ended the answer."""
    reader = generation.reader
    reason = "repetition" if reader.repeats else reader.stop_sequence
    return {"stop_reason": reason} if reason else {}


def token_entry(service: Service, token_id: int, logprob: float) -> dict[str, Any]:
    """A token with its log-probability; `bytes` where the text alone cannot say them."""
    raw = service.tokenizer.token_bytes(token_id)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
