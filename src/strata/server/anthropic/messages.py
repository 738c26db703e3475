"""POST /v1/messages, whole and streamed, and its token count."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse

from strata.errors import StrataError
from strata.server.anthropic.convert import conversation
from strata.server.anthropic.schema import CountRequest, MessagesRequest
from strata.server.anthropic.writer import MessageWriter
from strata.server.errors import STREAMS, anthropic_error, strata_status
from strata.server.generation import Generation
from strata.server.service import Service
from strata.server.streaming import event_stream, sse

router = APIRouter()


@router.post("/messages", response_model=None, responses=STREAMS)
async def messages(body: MessagesRequest, request: Request) -> JSONResponse | StreamingResponse:
    """The assistant's next turn."""
    service: Service = request.app.state.service
    call = await service.chat_call(conversation(body), service.wishes(body, request))
    [generation] = service.generations([call])
    omitted = body.thinking is not None and body.thinking.display == "omitted"
    writer = MessageWriter(service.model_id, generation, show_thinking=not omitted)
    request_id = f"req_{secrets.token_hex(12)}"
    if body.stream:
        await service.started([generation])
        response: JSONResponse | StreamingResponse = event_stream(
            _stream(service, generation, writer, request.url.path)
        )
    else:
        async for item in service.pieces([generation], request.url.path, writer.message["id"], request):
            if item is not None:
                writer.push(item[1])
        response = JSONResponse(writer.message)
    response.headers["request-id"] = request_id
    return response


async def _stream(
    service: Service, generation: Generation, writer: MessageWriter, path: str
) -> AsyncIterator[str]:
    source = service.pieces([generation], path, writer.message["id"])
    try:
        yield writer.opening() + sse({"type": "ping"}, "ping")
        async for item in source:
            yield sse({"type": "ping"}, "ping") if item is None else writer.push(item[1])
    except StrataError as error:  # the status has been sent, so the error is an event
        yield sse(anthropic_error(strata_status(error)[0], str(error)), "error")
    finally:
        await source.aclose()


@router.post("/messages/count_tokens", response_model=None)
async def count_tokens(body: CountRequest, request: Request) -> dict[str, Any]:
    """Tokens that the conversation's prompt has."""
    service: Service = request.app.state.service
    prompt = await asyncio.to_thread(service.preparer.render, conversation(body))
    return {"input_tokens": len(prompt.token_ids)}
