"""What is asked and when: prompts of a length in tokens, arrivals."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from strata.bench.serve.client import Target
from strata.errors import UsageError

ARRIVALS = ("together", "rate", "poisson")
_TEXT = (
    "river stone light house green paper water music garden window table summer winter letter friend market street "
    "mountain bread silver copper engine wheel forest island bridge doctor teacher farmer sailor morning evening story "
    "picture colour number circle corner basket candle feather hammer kitchen ladder"
)
_WORDS = _TEXT.split()
_PROBE_WORDS = (64, 320)


@dataclass(frozen=True)
class Load:
    """`concurrency` streams at once at most (0: no bound); `num_requests` in all, or as many as fit into `seconds`.

    `arrival`: together (each stream asks again when it has its answer), or at `rate` a second, evenly or as a Poisson
    process, whatever is still open.
    """

    concurrency: int = 8
    num_requests: int = 0
    prompt_len: int = 512
    output_len: int = 128
    arrival: str = "together"
    rate: float = 0.0
    seconds: float = 0.0
    seed: int = 0
    ignore_eos: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.arrival not in ARRIVALS:
            raise UsageError(f"--arrival is {self.arrival}; it must be one of {', '.join(ARRIVALS)}")
        if (self.arrival != "together") != (self.rate > 0):
            raise UsageError(
                f"--arrival {self.arrival} with --rate {self.rate:g}: a rate belongs to rate and poisson alone"
            )

    def check(self) -> None:
        """UsageError where nothing would be sent, or without end."""
        if self.arrival == "together" and not self.concurrency:
            raise UsageError("--concurrency is 0; without a rate it must be at least 1")
        if not self.num_requests and not self.seconds:
            raise UsageError("nothing would be sent: give --requests or --duration")

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a body beside the usual ones."""
        return ({"ignore_eos": True} if self.ignore_eos else {}) | self.extra

    def arrivals(self) -> Iterator[float]:
        """Seconds from the start at which requests are sent; ends with the number of them, or the time."""
        chance = random.Random(self.seed)
        at, count = 0.0, 0
        while count < self.num_requests if self.num_requests else at < self.seconds:
            yield at
            count += 1
            if self.arrival != "together":
                at += chance.expovariate(self.rate) if self.arrival == "poisson" else 1 / self.rate


class PromptMaker:
    """Texts that come close to a length in the server's own tokens; no two begin alike, so that nothing is reused."""

    def __init__(self, tokens_per_word: float = 1.0, fixed_tokens: float = 0.0):
        self._per_word, self._fixed = tokens_per_word, fixed_tokens

    @classmethod
    def fitted(cls, target: Target, model: str) -> "PromptMaker":
        """Asks the server twice and takes its counts; without counts, a word counts as a token."""
        counts = []
        for index, words in enumerate(_PROBE_WORDS):
            sample = target.ask(target.body(model, _text(f"probe {index}", words), 1, {"ignore_eos": True}))
            if sample.error and "no text" not in sample.error:
                raise UsageError(f"{target.url} does not answer: {sample.error}")
            if sample.prompt_tokens is None:
                return cls()
            counts.append(sample.prompt_tokens)
        per_word = (counts[1] - counts[0]) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])
        return cls(per_word, counts[0] - per_word * _PROBE_WORDS[0]) if per_word > 0 else cls()

    def text(self, seed: object, tokens: int) -> str:
        """About so many tokens."""
        return _text(seed, max(1, round((tokens - self._fixed) / self._per_word)))


def _text(seed: object, words: int) -> str:
    return " ".join(random.Random(f"strata {seed}").choices(_WORDS, k=words))
