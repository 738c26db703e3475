"""What a step will do and what came of it: plain data between the scheduler and the runner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

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
    """Rows of the sequences that decode, each sampled: i32 [n] arrays. One of each, or, where drafts are verified, as
    many as `counts` says: the token that exists, then drafts. `chains`: how many drafts the draft layer is to make for
    each sequence after the step. `hold`: the next step's rows cannot be guessed; `follow`: they are the newest
    tokens and all drafts of the chains."""

    sequences: Ints
    positions: Ints
    token_ids: Ints
    counts: Ints | None = None
    chains: Ints | None = None
    hold: bool = False
    follow: bool = False

    def __len__(self) -> int:
        return len(self.sequences)

    def only(self, i: int) -> "DecodeRows":
        """Row i alone."""
        return DecodeRows(self.sequences[i : i + 1], self.positions[i : i + 1], self.token_ids[i : i + 1])

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Each sequence's first row."""
        if self.counts is None:
            return np.arange(len(self.sequences))
        return np.cumsum(self.counts, dtype=np.int64) - self.counts

    def plain(self) -> "DecodeRows":
        """The rows without drafts."""
        first = self.firsts
        return DecodeRows(self.sequences[first], self.positions[first], self.token_ids[first])


NO_DECODE = DecodeRows(NO_ROWS, NO_ROWS, NO_ROWS)


@dataclass(frozen=True)
class PromptCursor:
    """A prompt chunk of whole blocks of 64 in the chunk form, which a step runs for `budget_ms` from part `part` on; a
    part ends after each layer. `taps` are (position, slot): where its state is written out, and to which slot.
    `part_ms`: how long a part will take, 0 where nobody knows. `most_ms`: parts beyond the first are started only where
    all of them take no longer, though the budget may allow it."""

    rows: ScheduledRows
    part: int
    budget_ms: float
    taps: tuple[tuple[int, int], ...] = ()
    part_ms: float = 0.0
    most_ms: float = inf


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


@dataclass(frozen=True)
class Chain:
    """Drafts of one sequence, with the draft layer's probabilities."""

    token_ids: list[int]
    probabilities: list[float]


@dataclass
class StepOutput:
    """Tokens of the decoding sequences in their order, `accepted` of each (None: one), and the first tokens of prompts
    that ended; the rest by sequence. The runner fills it."""

    plan: StepPlan
    token_ids: Ints = field(default_factory=lambda: NO_ROWS)
    prompt_token_ids: dict[int, int] = field(default_factory=dict)  # by request
    prompt_part: int = 0  # where the cursor goes on; 0: the chunk is complete
    prompt_parts: int = 0  # of the chunk in all
    prompt_waits: bool = False  # the chunk could not begin yet
    accepted: Ints | None = None
    cut: dict[int, bool] = field(
        default_factory=dict
    )  # whether a token that ends the text cut accepted drafts
    # Waits for drafts after the newest tokens, by sequence.
    chains: Callable[[], dict[int, Chain]] | None = None
    logprobs: dict[int, list[Logprobs]] = field(
        default_factory=dict
    )  # where they were asked for, of each token
    faults: dict[int, StrataError] = field(default_factory=dict)  # of requests that cannot go on
    prompt_ms: float = 0.0  # of the device; what earlier steps were told wrong is made up for here
    part_ms: float = 0.0  # of one part, as measured lately; 0: nothing was
    decode_ms: float = 0.0
    draft_ms: float = 0.0  # of the host, to start the draft layer's chains
