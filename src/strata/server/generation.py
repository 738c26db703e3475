"""One generation on the server's side: token events to text deltas, stops, usage; cancelled when its client leaves."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from strata.engine import SamplingParams
from strata.errors import StrataError
from strata.server.engine_thread import EngineThread
from strata.text import TextStream, Tokenizer


@dataclass(frozen=True)
class Delta:
    """New text; `finish_reason` (stop or length) comes with the last delta."""

    text: str
    finish_reason: str | None = None


class Generation:
    """Iterate `deltas` once; leaving the iteration early ends the request within a step."""

    def __init__(
        self,
        engine: EngineThread,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        stops: Sequence[str],
    ):
        self._engine, self._prompt, self._sampling = engine, prompt_token_ids, sampling
        self._stream = TextStream(tokenizer, stops, sampling.stop_token_ids)

    @property
    def usage(self) -> dict[str, int]:
        """Token counts in OpenAI's words; final after the last delta."""
        prompt, completion = len(self._prompt), self._stream.num_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Text as it becomes certain; raises the StrataError that ended the request."""
        ticket = self._engine.submit(self._prompt, self._sampling)
        try:
            while True:
                event = await ticket.events.get()
                if isinstance(event, StrataError):
                    raise event
                text = "".join(self._stream.push(token) for token in event.token_ids)
                if self._stream.stopped or event.finish_reason is not None:
                    text += self._stream.finish()
                    yield Delta(text, "stop" if self._stream.stopped else "length")
                    return
                if text:
                    yield Delta(text)
        finally:
            self._engine.cancel(ticket)
