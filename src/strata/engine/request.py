"""One user generation: tokens that exist, how many of them are computed, and what a client may ask about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import Any, Protocol

from numpy.typing import NDArray

from strata.engine.pooling import Pooling
from strata.errors import StrataError


class TokenMask(Protocol):
    """A constraint on a request's tokens (a grammar); both methods are called on the engine's thread."""

    def fill(self, allowed: NDArray[Any]) -> None:
        """Writes i32 [ceil(vocab_size / 32)], bit i of the whole set where token i may come next. Called after the
        step's forward; a StrataError ends the request."""

    def accept(self, token_id: int) -> None:
        """The token that was chosen; called once for each, before the next `fill`."""


@dataclass(frozen=True)
class SamplingParams:
    """How a request's tokens are chosen (docs/sampling.md) and when it ends."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none kept; 0: of the chosen token; k: also of the k likeliest


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # its state is in RAM; it goes on when there is room
    FINISHED = "finished"


@dataclass
class Timings:
    """Moments of a request, in seconds of time.perf_counter; 0 where it has not come so far."""

    arrived: float = field(default_factory=perf_counter)
    started: float = 0.0  # left the queue
    first_token: float = 0.0
    finished: float = 0.0

    @property
    def queue_seconds(self) -> float:
        """Waited before it was started."""
        return max(self.started - self.arrived, 0.0)

    @property
    def prompt_seconds(self) -> float:
        """From its start to its first token."""
        return max(self.first_token - self.started, 0.0)

    @property
    def generation_seconds(self) -> float:
        """From its first token to its end."""
        return max(self.finished - self.first_token, 0.0) if self.first_token else 0.0


@dataclass(eq=False)
class Request:
    """Scheduling closes the gap between `num_tokens` and `num_computed_tokens`; there are no phases.

    `client` names who asks, for fairness and limits. `cache_points` are positions in the prompt up to which other
    requests are likely to agree (the end of the system prompt, of the history): checkpoints are laid at the multiples
    of 64 before them. `images` are (position, digest) of what token ids alone do not tell apart.
    """

    request_id: int
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    client: str = ""
    mask: TokenMask | None = None
    cache_points: tuple[int, ...] = ()
    images: tuple[tuple[int, bytes], ...] = ()
    pooling: Pooling | None = None  # takes the prompt's features in; then nothing of the prompt is reused
    output_token_ids: list[int] = field(default_factory=list)  # these three grow in the scheduler's update
    logprobs: list[float] = field(default_factory=list)  # of the output, where sampling.logprobs is set
    top_logprobs: list[list[tuple[int, float]]] = field(
        default_factory=list
    )  # (token, logprob), likeliest first
    num_computed_tokens: int = 0  # advanced by the scheduler's update
    num_cached_tokens: int = 0  # of which by prefix reuse; set when it is started
    status: Status = Status.WAITING
    finish_reason: str | None = None  # stop, length, abort or error; set with FINISHED
    error: StrataError | None = None  # why it ended, where finish_reason is error
    timings: Timings = field(default_factory=Timings)
    sequence: int = -1  # row of the page table while running
    chunk_read: float = 0.0  # tokens' worth of a chunk that is begun and not complete

    @property
    def progress(self) -> float:
        """Share of the prompt that is read, 0 to 1."""
        return min((self.num_computed_tokens + self.chunk_read) / len(self.prompt_token_ids), 1.0)

    @property
    def num_tokens(self) -> int:
        """Tokens that exist."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def tokens(self, begin: int, end: int) -> list[int]:
        """Tokens [begin, end) of prompt and output."""
        prompt = len(self.prompt_token_ids)
        head = list(self.prompt_token_ids[begin : min(end, prompt)])
        return head + self.output_token_ids[max(begin - prompt, 0) : max(end - prompt, 0)]
