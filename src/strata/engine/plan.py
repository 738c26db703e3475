"""What a step will do and what came of it: plain data between the scheduler and the runner."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strata.engine.pooling import Pooling
from strata.engine.request import SamplingParams, TokenMask
from strata.errors import StrataError

Ints = NDArray[np.int32]
NO_ROWS: Ints = np.zeros(0, np.int32)


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
class DecodeRows:
    """One row of each sequence that decodes, each sampled: i32 [n] arrays."""

    sequences: Ints
    positions: Ints
    token_ids: Ints

    def __len__(self) -> int:
        return len(self.sequences)

    def only(self, i: int) -> "DecodeRows":
        """Row i alone."""
        return DecodeRows(self.sequences[i : i + 1], self.positions[i : i + 1], self.token_ids[i : i + 1])


NO_DECODE = DecodeRows(NO_ROWS, NO_ROWS, NO_ROWS)


@dataclass(frozen=True)
class PromptCursor:
    """A prompt chunk of whole blocks of 64 in the chunk form, which a step runs for `budget_ms` from part `part` on; a
    part ends after each layer. `taps` are (position, slot): where its state is written out, and to which slot.
    `part_ms`: how long a part will take, 0 where nobody knows."""

    rows: ScheduledRows
    part: int
    budget_ms: float
    taps: tuple[tuple[int, int], ...] = ()
    part_ms: float = 0.0


@dataclass(frozen=True)
class StartedSequence:
    """A request that got its sequence in this step; `output_token_ids` where it had begun before."""

    sequence: int
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    mask: TokenMask | None = None
    output_token_ids: Sequence[int] = ()
    pooling: Pooling | None = None


@dataclass(frozen=True)
class StepPlan:
    """Rows in the step form, the decoding ones before prompt tails; and at most one prompt chunk, for a while."""

    decode: DecodeRows = NO_DECODE
    tails: tuple[ScheduledRows, ...] = ()
    prompt: PromptCursor | None = None
    started: tuple[StartedSequence, ...] = ()
    reading: bool = False  # whether a chunk is begun or one can be, though this step may read nothing of it

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (len(self.decode.sequences) or self.tails or self.prompt)


@dataclass(frozen=True)
class Logprobs:
    """Log-probability of a chosen token, and of the likeliest (token, logprob), likeliest first."""

    chosen: float
    top: list[tuple[int, float]]


@dataclass
class StepOutput:
    """Tokens of the decode rows in their order, and the first tokens of prompts that ended; the rest by sequence.
    The runner fills it."""

    plan: StepPlan
    token_ids: Ints = field(default_factory=lambda: NO_ROWS)
    prompt_token_ids: dict[int, int] = field(default_factory=dict)  # by request
    prompt_part: int = 0  # where the cursor goes on; 0: the chunk is complete
    prompt_parts: int = 0  # of the chunk in all
    logprobs: dict[int, Logprobs] = field(default_factory=dict)  # where they were asked for
    faults: dict[int, StrataError] = field(default_factory=dict)  # of requests that cannot go on
    prompt_ms: float = 0.0  # of the device; what earlier steps were told wrong is made up for here
    part_ms: float = 0.0  # of one part, as measured lately; 0: nothing was
    decode_ms: float = 0.0
