"""A request as the engine and the reader of its answer need it, whatever protocol it came by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from strata.engine import Pooling, SamplingParams, TokenMask
from strata.server.reader import AnswerReader
from strata.server.ticket import Submission
from strata.text import Tokenizer
from strata.text.chat import OutputParser


@dataclass(frozen=True)
class Wishes:
    """What a client asks of its answers, whatever the prompt."""

    sampling: SamplingParams
    n: int = 1
    stops: tuple[str, ...] = ()
    stop_in_reasoning: bool = False
    repetition_limit: int = 0
    client: str = ""


@dataclass(frozen=True)
class Call:
    """One prompt and its answers; `parser` and `mask` make a new one for each answer."""

    prompt_token_ids: Sequence[int]
    wishes: Wishes
    parser: Callable[[], OutputParser] | None = None
    mask: Callable[[], TokenMask | None] = lambda: None
    cache_points: tuple[int, ...] = ()
    pooling: Pooling | None = None

    def submission(self, index: int) -> Submission:
        """Answer `index`: the first has the seed that was asked for, each other the next one."""
        sampling = self.wishes.sampling
        sampling = replace(sampling, seed=(sampling.seed + index) % 2**64)
        return Submission(
            self.prompt_token_ids, sampling, self.wishes.client, self.mask(), self.cache_points, self.pooling
        )

    def reader(self, tokenizer: Tokenizer) -> AnswerReader:
        """A reader of one answer."""
        sampling = self.wishes.sampling
        return AnswerReader(
            tokenizer,
            self.parser() if self.parser else None,
            self.wishes.stops,
            frozenset() if sampling.ignore_eos else sampling.stop_token_ids,
            stop_in_reasoning=self.wishes.stop_in_reasoning,
            repetition_limit=self.wishes.repetition_limit,
        )
