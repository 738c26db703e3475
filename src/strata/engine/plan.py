"""What a step will do and what came of it: plain data between the scheduler and the runner."""

from collections.abc import Sequence
from dataclasses import dataclass

from strata.engine.request import SamplingParams


@dataclass(frozen=True)
class ScheduledRows:
    """Consecutive tokens of one sequence, computed in this step."""

    request_id: int
    sequence: int
    position: int  # absolute position of the first token
    token_ids: list[int]
    sampled: bool  # whether the last row's logits choose a token

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.position + len(self.token_ids)


@dataclass(frozen=True)
class StartedSequence:
    """A request that got its sequence in this step."""

    sequence: int
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams


@dataclass(frozen=True)
class StepPlan:
    """Rows in the step form, grouped by sequence; then at most one prompt chunk of whole blocks in the chunk form."""

    rows: tuple[ScheduledRows, ...]
    chunk: ScheduledRows | None = None
    started: tuple[StartedSequence, ...] = ()
    ended: tuple[int, ...] = ()  # sequences whose memory is free before the step

    def scheduled(self) -> tuple[ScheduledRows, ...]:
        """Everything the step computes."""
        return self.rows if self.chunk is None else (*self.rows, self.chunk)


@dataclass(frozen=True)
class StepOutput:
    """Sampled tokens by request."""

    plan: StepPlan
    token_ids: dict[int, int]
