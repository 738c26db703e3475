"""What the endpoints share: the engine thread, the tokenizer, conversations, metrics, the log."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fastapi import Request

from strata.config import ServerOptions
from strata.engine import PoolingMode, pooling_mode
from strata.errors import ContextLengthError, UsageError
from strata.server.call import Call, Wishes
from strata.server.conversation import Conversation, Preparer
from strata.server.draft_metrics import DraftCollector
from strata.server.engine_thread import EngineThread
from strata.server.generation import Generation, Piece
from strata.server.metrics import Metrics
from strata.server.request_log import log_answer
from strata.server.streaming import kept_alive, merged
from strata.server.tier_metrics import TierCollector
from strata.text import Tokenizer
from strata.text.chat import ChatTemplate
from strata.text.chat.template import KEY as CHAT_TEMPLATE_KEY


@dataclass
class Service:
    """One loaded model, served under `model_id`."""

    engine: EngineThread
    tokenizer: Tokenizer
    preparer: Preparer
    model_id: str
    options: ServerOptions
    max_model_len: int
    vocab_size: int
    embedding_width: int
    pooling: PoolingMode
    metrics: Metrics
    tier_counts: dict[str, int]  # as of the last look
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, engine: EngineThread, model_id: str, options: ServerOptions) -> "Service":
        """Around an engine that is loaded."""
        loaded = engine.engine
        metadata, vocab = loaded.model_file.metadata, loaded.model_config.vocab_size
        tokenizer = Tokenizer.from_metadata(metadata)
        template = ChatTemplate.from_metadata(metadata) if CHAT_TEMPLATE_KEY in metadata else None
        preparer = Preparer(tokenizer, template, vocab)
        metrics, tier_counts = Metrics(model_id), dict[str, int]()
        _watch_engine(metrics, engine)
        metrics.registry.register(TierCollector(lambda: tier_counts, loaded.placement))
        return cls(
            engine,
            tokenizer,
            preparer,
            model_id,
            options,
            loaded.max_model_len,
            vocab,
            loaded.embedding_width,
            pooling_mode(loaded.model_file),
            metrics,
            tier_counts,
        )

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.tokenizer.eos_ids)

    def room(self, tokens: Sequence[int]) -> int:
        """New tokens that fit behind a prompt; errors for one that is empty, too long, or outside the vocabulary."""
        if not tokens:
            raise UsageError("the prompt is empty")
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self.vocab_size:
            raise UsageError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {self.vocab_size}"
            )
        room = self.max_model_len - len(tokens)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(tokens)} tokens; the context holds {self.max_model_len}, one of them new"
            )
        return room

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        return max(len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size))

    def fits(self, characters: int) -> None:
        """ContextLengthError for a text that is too long whatever its tokens are, before time is spent on it."""
        if characters < self.max_model_len:
            return
        least, most = characters // self.longest_token, self.max_model_len
        if least >= most:
            raise ContextLengthError(
                f"the prompt has {characters} characters, at least {least} tokens; the context holds {most}"
            )

    def wishes(self, body: Any, request: Request, logprobs: int | None = None) -> Wishes:
        """Of a body with the fields of `Sampling`."""
        limit = body.repetition_limit
        return Wishes(
            body.params(self.eos_ids, secrets.randbits(63), logprobs),
            body.n or 1,
            body.stops,
            bool(body.stop_in_reasoning),
            self.options.repetition_limit if limit is None else limit,
            client_of(request),
        )

    async def chat_call(self, conversation: Conversation, wishes: Wishes) -> Call:
        """A conversation as a call; rendered and encoded beside the event loop, for either may take a while."""
        contents = (message.get("content") for message in conversation.messages)
        self.fits(sum(len(text) for text in contents if isinstance(text, str)))
        ready = await asyncio.to_thread(self.preparer.prepare, conversation)
        self.room(ready.prompt.token_ids)
        return Call(ready.prompt.token_ids, wishes, ready.parser, ready.mask, ready.cache_points)

    def generations(self, calls: Sequence[Call]) -> list[Generation]:
        """Answers that have not begun: those of the first call, then those of the next."""
        observe = self.metrics.gap.observe
        return [
            Generation(self.engine, self.tokenizer, call, index, observe)
            for call in calls
            for index in range(call.wishes.n)
        ]

    async def look(self) -> None:
        """Asks for what only the engine's thread may look at; values stay where a step keeps it from telling soon, or
        the model is not in memory."""
        found = await self.engine.ask_soon(lambda e: (e.num_free_pages / e.num_pages, e.tier_counts()), None)
        if found is not None:
            self.metrics.kv_usage.set(1 - found[0])
            self.tier_counts.update(found[1])
        elif not self.engine.loaded:
            self.metrics.kv_usage.set(0)

    async def measured(self) -> bytes:
        """The metrics."""
        await self.look()
        return self.metrics.render()

    async def started(self, generations: Sequence[Generation]) -> None:
        """Queues them all, before a stream's status is sent; raises what refuses one, and gives up the others."""
        await asyncio.gather(*(generation.start() for generation in generations))

    async def pieces(
        self, generations: Sequence[Generation], path: str, request_id: str, request: Request | None = None
    ) -> AsyncGenerator[tuple[int, Piece] | None, None]:
        """(answer, piece) as they come, and None in a silence; counted and logged at the end. With a `request`, given
        up when its client has gone."""
        source = kept_alive(merged([g.pieces() for g in generations]), self.options.heartbeat, request)
        try:
            async with contextlib.aclosing(source) as items:
                async for item in items:
                    yield item
        finally:
            for generation in generations:
                self.metrics.count(generation)
            log_answer(path, request_id, generations)


def _watch_engine(metrics: Metrics, engine: EngineThread) -> None:
    """Values that are read when somebody asks."""
    metrics.gauge("num_requests_running", "Requests in steps.", lambda: engine.num_running)
    metrics.gauge("num_requests_waiting", "Requests in the queue.", lambda: engine.num_waiting)
    parts = {"prompt": lambda: engine.prompt_seconds, "decode": lambda: engine.decode_seconds}
    metrics.own("step_seconds", "Time of steps, by what it went to.", parts, "part")
    loaded = {"": lambda: float(engine.loaded)}
    drafts = DraftCollector(lambda: engine.engine.drafts if engine.loaded else None, metrics.model_id)
    metrics.registry.register(drafts)
    metrics.own("model_loaded", "Whether the model is in memory.", loaded)


def client_of(request: Request) -> str:
    """Who asks: the name of the key that was given, else the address."""
    named = request.scope.get("strata.client")
    return str(named) if named else request.client.host if request.client else ""
