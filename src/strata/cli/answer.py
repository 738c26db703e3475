"""One generation as text: pieces as they become certain, then why it ended and how fast it was."""

import contextlib
from collections.abc import Callable, Sequence

from strata.engine import Engine, SamplingParams
from strata.text import TextStream, Tokenizer


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
        stream = TextStream(self._tokenizer, self._stops, params.stop_token_ids)
        with contextlib.closing(self._engine.generate(prompt_token_ids, params)) as tokens:
            for token in tokens:
                self._add(stream.push(token), write)
                if stream.stopped:
                    break
        self._add(stream.finish(), write)
        self.num_tokens = stream.num_tokens
        self.finish_reason = "stop" if stream.stopped else "length"

    def _add(self, piece: str, write: Callable[[str], None]) -> None:
        self.text += piece
        if piece:
            write(piece)

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
