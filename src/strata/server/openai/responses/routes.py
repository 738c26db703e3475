"""POST /v1/responses, and what was stored of them."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse

from strata.errors import StrataError
from strata.server.errors import STREAMS, strata_status
from strata.server.generation import Generation
from strata.server.openai.answers import sign_of_life
from strata.server.openai.responses.convert import conversation, input_items
from strata.server.openai.responses.schema import ResponsesRequest
from strata.server.openai.responses.store import ResponseStore, Stored
from strata.server.openai.responses.writer import ResponseWriter
from strata.server.service import Service, client_of
from strata.server.streaming import event_stream

router = APIRouter()


@router.post("/responses", response_model=None, responses=STREAMS)
async def responses(body: ResponsesRequest, request: Request) -> JSONResponse | StreamingResponse:
    """The model's answer; kept unless `store` is false, so that another can go on from it."""
    service: Service = request.app.state.service
    before = _earlier(request, body.previous_response_id) if body.previous_response_id else None
    new = input_items(body)
    items = [*(before.items if before else []), *new]
    wishes = service.wishes(body, request, body.num_logprobs)
    [generation] = service.generations([await service.chat_call(conversation(body, items), wishes)])
    writer = ResponseWriter(service, body, generation)

    def keep() -> None:
        if body.store is not False:
            output = writer.response["output"]
            _store(request).put(writer.response, new, [*items, *output], client_of(request))

    path = request.url.path
    if body.stream:
        await service.started([generation])
        return event_stream(_stream(service, generation, writer, path, keep))
    async for item in service.pieces([generation], path, writer.response["id"], request):
        if item is not None:
            writer.push(item[1])
    keep()
    return JSONResponse(writer.response)


async def _stream(
    service: Service, generation: Generation, writer: ResponseWriter, path: str, keep: Any
) -> AsyncIterator[str]:
    source = service.pieces([generation], path, writer.response["id"])
    try:
        yield writer.opening()
        async for item in source:
            events = await sign_of_life(generation) if item is None else writer.push(item[1])
            if item is not None and item[1].finish_reason:
                keep()  # before the last event, as a client may go on at once
            yield events
    except StrataError as error:  # the status has been sent, so the error is an event
        status, code = strata_status(error)
        yield writer.fail(code or ("server_error" if status >= 500 else "invalid_prompt"), str(error))
    finally:
        await source.aclose()


@router.get("/responses/{response_id}", response_model=None)
async def get_response(response_id: str, request: Request) -> dict[str, Any]:
    """A stored response."""
    return _earlier(request, response_id).response


@router.delete("/responses/{response_id}")
async def delete_response(response_id: str, request: Request) -> dict[str, Any]:
    """Forgets a stored response."""
    if not _store(request).delete(response_id, client_of(request)):
        raise _unknown(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get("/responses/{response_id}/input_items")
async def get_input_items(response_id: str, request: Request) -> dict[str, Any]:
    """What a stored response was an answer to."""
    items = [{"id": f"item_{i}", **item} for i, item in enumerate(_earlier(request, response_id).input_items)]
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return {"object": "list", "data": items, "has_more": False, **ends}


def _store(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


def _earlier(request: Request, response_id: str) -> Stored:
    found = _store(request).get(response_id, client_of(request))
    if found is None:
        raise _unknown(response_id)
    return found


def _unknown(response_id: str) -> HTTPException:
    return HTTPException(
        404, f"there is no response {response_id!r}: it was never stored, or has left memory"
    )
