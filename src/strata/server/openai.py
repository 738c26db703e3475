"""OpenAI's endpoints: completions, chat completions, models."""

import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse

from strata.errors import ContextLengthError, StrataError, UsageError
from strata.server.errors import strata_error
from strata.server.generation import Generation
from strata.server.schema import ChatRequest, CompletionRequest, Sampling
from strata.server.service import Service

router = APIRouter(prefix="/v1")


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """The one model that is loaded."""
    service: Service = request.app.state.service
    return {"object": "list", "data": [service.model_card()]}


@router.post("/completions", response_model=None)
async def completions(body: CompletionRequest, request: Request) -> JSONResponse | StreamingResponse:
    """Text after a prompt given as text or as token ids."""
    service: Service = request.app.state.service
    try:
        prompt = body.single
    except ValueError as error:
        raise UsageError(str(error)) from None
    tokens = service.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    return await _answer(service, body, tokens, request, _TextShape(service.model_id))


@router.post("/chat/completions", response_model=None)
async def chat_completions(body: ChatRequest, request: Request) -> JSONResponse | StreamingResponse:
    """The assistant's next turn."""
    service: Service = request.app.state.service
    return await _answer(service, body, service.chat_tokens(body), request, _ChatShape(service.model_id))


class _Shape:
    """How an answer is written: ids, object names, where the text stands."""

    prefix = object_name = chunk_name = ""

    def __init__(self, model: str):
        self._base = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        raise NotImplementedError

    def delta(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return self.choice(text, finish_reason)

    def whole(self, text: str, finish_reason: str, usage: dict[str, int]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self.choice(text, finish_reason)]
        return {**self._base, "object": self.object_name, "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        """One server-sent event."""
        body = {**self._base, "object": self.chunk_name, "choices": choices, **more}
        return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"

    def opening(self) -> str:
        """What a stream begins with."""
        return ""


class _TextShape(_Shape):
    prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}


class _ChatShape(_Shape):
    prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}

    def delta(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish_reason}

    def opening(self) -> str:
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self.chunk([first])


async def _answer(
    service: Service, body: Sampling, tokens: list[int], request: Request, shape: _Shape
) -> JSONResponse | StreamingResponse:
    room = service.max_model_len - len(tokens)
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {len(tokens)} tokens; the context holds {service.max_model_len}, one of them new"
        )
    service.check_tokens(tokens)
    generation = service.generate(tokens, body, room)
    if body.stream:
        events = _stream(service, generation, shape, body.include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    return await _collect(service, generation, shape, request)


async def _collect(
    service: Service, generation: Generation, shape: _Shape, request: Request
) -> JSONResponse:
    pieces, reason = [], "length"
    async for delta in service.watched(generation, request):
        pieces.append(delta.text)
        reason = delta.finish_reason or reason
    return JSONResponse(shape.whole("".join(pieces), reason, generation.usage))


async def _stream(
    service: Service, generation: Generation, shape: _Shape, include_usage: bool
) -> AsyncIterator[str]:
    if shape.opening():
        yield shape.opening()
    try:
        async for delta in service.watched(generation, None):
            yield shape.chunk([shape.delta(delta.text, delta.finish_reason)])
    except StrataError as error:  # headers are gone, so the error is an event
        yield f"data: {json.dumps(strata_error(error)[1])}\n\n"
        return
    if include_usage:
        yield shape.chunk([], usage=generation.usage)
    yield "data: [DONE]\n\n"
