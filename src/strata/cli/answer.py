"""One generation as text: pieces as they become certain, then why it ended and how fast it was."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from strata.engine import Engine, SamplingParams
from strata.text import Detokenizer, StopMatcher, Tokenizer


class Answer:
    """Text of one prompt; `collect` fills `text`, `num_tokens` and `finish_reason` (stop or length)."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._engine, self._tokenizer, self._stops = engine, tokenizer, stops
        self.text = ""
        self.num_tokens = 0
        self.finish_reason = "length"

    def collect(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, write: Callable[[str], None]
    ) -> None:
        """Generate to the end, giving each piece to `write`."""
        with contextlib.closing(self._engine.generate(prompt_token_ids, params)) as tokens:
            for piece in self._pieces(tokens, params.stop_token_ids):
                self.text += piece
                write(piece)

    def _pieces(self, tokens: Iterator[int], stop_token_ids: frozenset[int]) -> Iterator[str]:
        detokenizer, matcher = Detokenizer(self._tokenizer), StopMatcher(self._stops)
        for token in tokens:
            self.num_tokens += 1
            if token in stop_token_ids:
                self.finish_reason = "stop"
                break
            piece, matched = matcher.push(detokenizer.push(token))
            if piece:
                yield piece
            if matched:
                self.finish_reason = "stop"
                return
        piece, matched = matcher.push(detokenizer.finish())
        self.finish_reason = "stop" if matched else self.finish_reason
        yield piece + matcher.finish()

    def report(self) -> dict[str, str | int | float]:
        """The answer and its figures, for --json; rates in tokens per second."""
        prompt_tps, generation_tps = self._rates()
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self._engine.stats.prompt_tokens,
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
            stats.prompt_tokens / max(stats.prompt_seconds, 1e-9),
            stats.generated_tokens / max(stats.generation_seconds, 1e-9),
        )
