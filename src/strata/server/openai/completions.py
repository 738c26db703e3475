"""POST /v1/completions."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse

from strata.engine import TokenMask
from strata.server.call import Call
from strata.server.errors import STREAMS
from strata.server.generation import Generation, Piece, TokenLogprob
from strata.server.openai.answers import Answer, stop_extras, token_entry
from strata.server.openai.completion_schema import CompletionRequest
from strata.server.service import Service
from strata.text.chat import ContentDelta
from strata.text.grammar import TokenConstraint

router = APIRouter()


@router.post("/completions", response_model=None, responses=STREAMS)
async def completions(body: CompletionRequest, request: Request) -> JSONResponse | StreamingResponse:
    """Text after a prompt given as text or as token ids."""
    service: Service = request.app.state.service
    wishes = service.wishes(body, request, body.logprobs)
    calls = await asyncio.to_thread(_calls, service, body, wishes)
    answer = Answer(service, calls, [], "cmpl", ("text_completion", "text_completion"))
    answer.choices = [
        TextChoice(service, generation, i, bool(body.echo)) for i, generation in enumerate(answer.generations)
    ]
    return await answer.respond(request, bool(body.stream), body.include_usage)


def _calls(service: Service, body: CompletionRequest, wishes: Any) -> list[Call]:
    grammars, source = service.preparer.grammars, body.format().grammar
    if source is not None:
        grammars.compile(source)

    def mask() -> TokenMask | None:
        return None if source is None else TokenConstraint(grammars, grammars.compile(source), None)

    calls = []
    for prompt in body.prompts:
        service.fits(len(prompt) if isinstance(prompt, str) else 0)
        tokens = service.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        service.room(tokens)
        calls.append(Call(tokens, wishes, mask=mask))
    return calls


class TextChoice:
    """Text as it comes."""

    def __init__(self, service: Service, generation: Generation, index: int, echo: bool):
        self._service, self._generation, self._index = service, generation, index
        self._text = service.tokenizer.decode(generation.call.prompt_token_ids) if echo else ""
        self._echo = self._text
        self._logprobs: list[TokenLogprob] = []
        self._offset = len(self._text)
        self._reason: str | None = None

    def opening(self) -> list[dict[str, Any]]:
        """The prompt, where it was asked for."""
        return [self._choice(self._echo, [])] if self._echo else []

    def push(self, piece: Piece) -> list[dict[str, Any]]:
        """The text; the last piece carries the finish reason."""
        text = "".join(event.text for event in piece.events if isinstance(event, ContentDelta))
        self._text += text
        self._logprobs += piece.logprobs
        made = [self._choice(text, piece.logprobs)] if text or piece.logprobs else []
        if piece.finish_reason:
            self._reason = piece.finish_reason
            made.append(self._choice("", [], piece.finish_reason) | stop_extras(self._generation))
        return made

    def whole(self) -> dict[str, Any]:
        """All the text."""
        self._offset = len(self._echo)
        return self._choice(self._text, self._logprobs, self._reason) | stop_extras(self._generation)

    def _choice(self, text: str, logprobs: list[TokenLogprob], reason: str | None = None) -> dict[str, Any]:
        found = self._table(logprobs) if logprobs else None
        return {"index": self._index, "text": text, "logprobs": found, "finish_reason": reason}

    def _table(self, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        """Columns of tokens, their log-probabilities, the likeliest and where each token's text begins."""
        entries = [token_entry(self._service, p.token_id, p.logprob) for p in logprobs]
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        tops = [{token_entry(self._service, t, v)["token"]: v for t, v in p.top} for p in logprobs]
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": tops,
            "text_offset": offsets,
        }
