"""OpenAI's endpoints: completions, chat completions, models."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse

from strata.errors import ContextLengthError, StrataError, UsageError
from strata.server.errors import strata_error
from strata.server.generation import Generation
from strata.server.schema import ChatRequest, CompletionRequest, Sampling
from strata.server.service import Service
from strata.server.shapes import ChatShape, Shape, TextShape

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
    return await _answer(service, body, tokens, request, TextShape(service.model_id))


@router.post("/chat/completions", response_model=None)
async def chat_completions(body: ChatRequest, request: Request) -> JSONResponse | StreamingResponse:
    """The assistant's next turn."""
    service: Service = request.app.state.service
    prompt = service.chat_prompt(body)
    shape = ChatShape(service.model_id, prompt.parser(tools=None))
    return await _answer(service, body, prompt.token_ids, request, shape)


async def _answer(
    service: Service, body: Sampling, tokens: Sequence[int], request: Request, shape: Shape
) -> JSONResponse | StreamingResponse:
    service.check_tokens(tokens)
    room = service.max_model_len - len(tokens)
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {len(tokens)} tokens; the context holds {service.max_model_len}, one of them new"
        )
    generation = service.generate(tokens, body, room)
    if body.stream:
        events = _stream(service, generation, shape, body.include_usage)
        return StreamingResponse(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
    return await _collect(service, generation, shape, request)


async def _collect(service: Service, generation: Generation, shape: Shape, request: Request) -> JSONResponse:
    reason = "length"
    async for delta in service.watched(generation, request):
        shape.push(delta.text)
        reason = delta.finish_reason or reason
    shape.finish(reason)
    return JSONResponse(shape.whole(reason, generation.usage))


async def _stream(
    service: Service, generation: Generation, shape: Shape, include_usage: bool
) -> AsyncIterator[str]:
    yield shape.chunks(shape.opening())
    reason = "length"
    try:
        async for delta in service.watched(generation, None):
            reason = delta.finish_reason or reason
            yield shape.chunks(shape.push(delta.text))
    except StrataError as error:  # headers are gone, so the error is an event
        yield f"data: {json.dumps(strata_error(error)[1])}\n\n"
        return
    yield shape.chunks(shape.finish(reason))
    if include_usage:
        yield shape.chunk([], usage=generation.usage)
    yield "data: [DONE]\n\n"
