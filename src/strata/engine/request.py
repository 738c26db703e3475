"""One user generation: tokens that exist, and how many of them are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


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


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """Scheduling closes the gap between `num_tokens` and `num_computed_tokens`; there are no phases."""

    request_id: int
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    output_token_ids: list[int] = field(default_factory=list)  # appended by the scheduler's update
    num_computed_tokens: int = 0  # advanced by the scheduler's update
    status: Status = Status.WAITING
    finish_reason: str | None = None  # stop, length or abort; set with FINISHED
    sequence: int = -1  # row of the page table while running

    @property
    def num_tokens(self) -> int:
        """Tokens that exist."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def tokens(self, begin: int, end: int) -> list[int]:
        """Tokens [begin, end) of prompt and output."""
        prompt = len(self.prompt_token_ids)
        head = list(self.prompt_token_ids[begin : min(end, prompt)])
        return head + self.output_token_ids[max(begin - prompt, 0) : max(end - prompt, 0)]
