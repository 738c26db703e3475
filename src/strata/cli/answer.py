"""One generation as text: pieces as they become certain, then why it ended and how fast it was."""

import contextlib
from collections.abc import Callable, Sequence

from strata.engine import Engine, SamplingParams
from strata.text import TextStream, Tokenizer
from strata.text.chat import ContentDelta, Event, OutputParser, ReasoningDelta


class Answer:
    """Text of one prompt; `collect` fills `text`, `reasoning`, `num_tokens` and `finish_reason` (stop, length, abort).

    With a `parser`, reasoning is split off; without one, all is text.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, stops: Sequence[str], parser: OutputParser | None = None
    ) -> None:
        self._engine, self._tokenizer, self._stops, self._parser = engine, tokenizer, stops, parser
        self.text = self.reasoning = ""
        self.num_tokens = 0
        self.finish_reason = "length"

    def collect(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        write: Callable[[Event], None],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Generate to the end, or until `cancelled`, giving each piece to `write`."""
        stream = TextStream(self._tokenizer, self._stops, params.stop_token_ids)
        with contextlib.closing(self._engine.generate(prompt_token_ids, params, cancelled)) as tokens:
            for token in tokens:
                self._add(self._parsed(stream.push(token)), write)
                if stream.stopped:
                    break
        self._add(self._parsed(stream.finish()), write)
        self._add(self._parser.finish(cut=not stream.stopped) if self._parser else [], write)
        self.num_tokens = stream.num_tokens
        ended = "abort" if cancelled() else "length"
        self.finish_reason = "stop" if stream.stopped else ended

    def _parsed(self, piece: str) -> list[Event]:
        if self._parser is None:
            return [ContentDelta(piece)] if piece else []
        return self._parser.push(piece)

    def _add(self, events: list[Event], write: Callable[[Event], None]) -> None:
        for event in events:
            if isinstance(event, ReasoningDelta):
                self.reasoning += event.text
            elif isinstance(event, ContentDelta):
                self.text += event.text
            write(event)

    def report(self) -> dict[str, str | int | float]:
        """The answer and its figures, for --json; rates in tokens per second."""
        prompt_tps, generation_tps = self._rates()
        return {
            "text": self.text,
            **({"reasoning": self.reasoning} if self.reasoning else {}),
            "finish_reason": self.finish_reason,
            "prompt_tokens": self._engine.stats.prompt_tokens,
            "cached_tokens": self._engine.stats.cached_tokens,
            "generated_tokens": self.num_tokens,
            "prompt_tps": prompt_tps,
            "generation_tps": generation_tps,
        }

    def speeds(self) -> str:
        """One line for people."""
        prompt_tps, generation_tps = self._rates()
        return (
            f"prompt: {self._engine.stats.prompt_tokens} tokens, {prompt_tps:.1f} tok/s; "
            f"generation: {self.num_tokens} tokens, {generation_tps:.1f} tok/s"
        )

    def _rates(self) -> tuple[float, float]:
        stats = self._engine.stats
        return (
            (stats.prompt_tokens - stats.cached_tokens) / max(stats.prompt_seconds, 1e-9),
            stats.generated_tokens / max(stats.generation_seconds, 1e-9),
        )
