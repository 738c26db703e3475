"""What the endpoints share: the engine thread, the tokenizer, the chat template, metrics."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from strata.errors import StrataError, UsageError
from strata.server.engine_thread import EngineThread
from strata.server.generation import Delta, Generation
from strata.server.metrics import Metrics
from strata.server.schema import ChatRequest, Sampling
from strata.text import Tokenizer
from strata.text.chat import ChatPrompt, ChatTemplate, effort_options, encode_chat

_LOOK_FOR_CLIENT = 0.1  # seconds between looks whether a client that waits for a whole answer is still there
# Names that rendering itself takes, so that no variable of a template can be called so here.
_NOT_VARIABLES = {"self", "tokenizer", "template", "messages", "tools", "control_tokens", "budget"}


@dataclass
class Service:
    """One loaded model, served under `model_id`."""

    engine: EngineThread
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model_id: str
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def max_model_len(self) -> int:
        """Tokens a conversation can hold."""
        return self.engine.engine.max_model_len

    def model_card(self) -> dict[str, Any]:
        """The entry of /v1/models."""
        return {
            "id": self.model_id,
            "object": "model",
            "created": self.created,
            "owned_by": "strata",
            "max_model_len": self.max_model_len,
        }

    def chat_prompt(self, body: ChatRequest) -> ChatPrompt:
        """A conversation as token ids, ready for the assistant's turn."""
        if self.template is None:
            raise UsageError("the model file has no chat template; use /v1/completions")
        if taken := sorted(_NOT_VARIABLES & set(body.chat_template_kwargs or {})):
            raise UsageError(f"chat_template_kwargs cannot set {taken[0]}")
        messages = [_message(m.model_dump(exclude_none=True)) for m in body.messages]
        options = {
            **effort_options(self.template, body.reasoning_effort),
            **(body.chat_template_kwargs or {}),
        }
        return encode_chat(self.tokenizer, self.template, messages, **options)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """UsageError for an empty prompt or an id outside the vocabulary."""
        vocab = self.engine.engine.model_config.vocab_size
        if not tokens:
            raise UsageError("the prompt is empty")
        for token in tokens:
            if not 0 <= token < vocab:
                raise UsageError(f"token id {token} is outside the vocabulary of {vocab}")

    def generate(self, tokens: Sequence[int], body: Sampling, room: int) -> Generation:
        """A generation that has not begun."""
        params = body.params(frozenset(self.tokenizer.eos_ids), room, secrets.randbits(63))
        return Generation(self.engine, self.tokenizer, tokens, params, body.stops)

    async def watched(self, generation: Generation, request: Request | None) -> AsyncIterator[Delta]:
        """Its deltas, counted; with a `request`, given up when that client has gone."""
        started, first = time.perf_counter(), True
        reason = "abort"
        async with contextlib.aclosing(generation.deltas()) as deltas:
            try:
                async for delta in _while_connected(deltas, request):
                    if first:
                        self.metrics.first_token.observe(time.perf_counter() - started)
                        first = False
                    reason = delta.finish_reason or reason
                    yield delta
            finally:
                self._count(generation, reason, time.perf_counter() - started)

    def _count(self, generation: Generation, reason: str, seconds: float) -> None:
        self.metrics.requests.labels(reason).inc()
        self.metrics.end_to_end.observe(seconds)
        self.metrics.prompt_tokens.inc(generation.usage["prompt_tokens"])
        self.metrics.generation_tokens.inc(generation.usage["completion_tokens"])


async def _while_connected(deltas: AsyncIterator[Delta], request: Request | None) -> AsyncIterator[Delta]:
    """Deltas until the end, or until the client has gone. A stream needs no look: writing to it fails by itself."""
    if request is None:
        async for delta in deltas:
            yield delta
        return
    following = asyncio.ensure_future(_next(deltas))
    try:
        while True:
            done, _ = await asyncio.wait([following], timeout=_LOOK_FOR_CLIENT)
            if done:
                arrived = following.result()
                if arrived is None:
                    return
                following = asyncio.ensure_future(_next(deltas))
                yield arrived
            elif await request.is_disconnected():
                return
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError, StrataError):
            await following


async def _next(deltas: AsyncIterator[Delta]) -> Delta | None:
    return await anext(deltas, None)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Content parts of type text as one string, the form most templates know; `developer` as `system`."""
    if message["role"] == "developer":
        message["role"] = "system"
    parts = message.get("content")
    if isinstance(parts, list):
        for part in parts:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise UsageError(f"content part of type {part.get('type')!r} is not supported; text is")
        message["content"] = "".join(part["text"] for part in parts)
    return message
