"""POST /v1/chat/completions."""

import secrets
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse

from strata.server.errors import STREAMS
from strata.server.generation import Generation, Piece
from strata.server.openai.answers import Answer, stop_extras, token_entry
from strata.server.openai.chat_schema import ChatRequest
from strata.server.service import Service
from strata.text.chat import (
    ArgumentsDelta,
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallStart,
    collect,
)

router = APIRouter()


@router.post("/chat/completions", response_model=None, responses=STREAMS)
async def chat_completions(body: ChatRequest, request: Request) -> JSONResponse | StreamingResponse:
    """The assistant's next turn."""
    service: Service = request.app.state.service
    wishes = service.wishes(body, request, body.num_logprobs)
    call = await service.chat_call(body.conversation(), wishes)
    answer = Answer(service, [call], [], "chatcmpl", ("chat.completion", "chat.completion.chunk"))
    answer.choices = [
        ChatChoice(service, generation, i, bool(body.logprobs))
        for i, generation in enumerate(answer.generations)
    ]
    return await answer.respond(request, bool(body.stream), body.include_usage)


class ChatChoice:
    """Reasoning, content and calls apart."""

    def __init__(self, service: Service, generation: Generation, index: int, logprobs: bool):
        self._service, self._generation, self._index = service, generation, index
        self._with_logprobs = logprobs
        self._logprobs: list[dict[str, Any]] = []
        self._unsent = 0  # of them, those that a chunk has yet to carry
        self._events: list[Event] = []
        self._call_ids: list[str] = []
        self._reason: str | None = None

    def opening(self) -> list[dict[str, Any]]:
        """The role."""
        return [self._delta({"role": "assistant", "content": ""})]

    def push(self, piece: Piece) -> list[dict[str, Any]]:
        """Deltas of reasoning, content and calls; the last carries the finish reason."""
        self._logprobs += [self._entry(p) for p in piece.logprobs]
        self._unsent += len(piece.logprobs)
        self._events += piece.events
        made = [delta for event in piece.events for delta in self._deltas(event)]
        if piece.finish_reason:
            self._reason = piece.finish_reason
            made.append(self._delta({}, piece.finish_reason) | stop_extras(self._generation))
        return made

    def whole(self) -> dict[str, Any]:
        """The message."""
        answer = collect(self._events)
        message: dict[str, Any] = {"role": "assistant", "content": answer.content or None, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for i, call in zip(self._call_ids, answer.tool_calls, strict=True)
            ]
        elif message["content"] is None:
            message["content"] = ""
        logprobs = {"content": self._logprobs, "refusal": None} if self._with_logprobs else None
        return {
            "index": self._index,
            "message": message,
            "finish_reason": self._reason,
            "logprobs": logprobs,
            **stop_extras(self._generation),
        }

    def _deltas(self, event: Event) -> list[dict[str, Any]]:
        match event:
            case ReasoningDelta(text):
                return [self._delta({"reasoning_content": text})]
            case ContentDelta(text):
                return [self._delta({"content": text})]
            case ToolCallStart(index, name, _):
                self._call_ids.append(f"call_{secrets.token_hex(12)}")
                function = {"name": name, "arguments": ""}
                start = {"index": index, "id": self._call_ids[-1], "type": "function", "function": function}
                return [self._delta({"tool_calls": [start]})]
            case ArgumentsDelta(index, text):
                return [self._delta({"tool_calls": [{"index": index, "function": {"arguments": text}}]})]
        return []

    def _delta(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        logprobs = None
        if self._with_logprobs and self._unsent:
            logprobs = {"content": self._logprobs[-self._unsent :], "refusal": None}
            self._unsent = 0
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _entry(self, p: Any) -> dict[str, Any]:
        top = [token_entry(self._service, token, logprob) for token, logprob in p.top]
        return {**token_entry(self._service, p.token_id, p.logprob), "top_logprobs": top}
