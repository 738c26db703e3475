"""The draft layer beside a runner: told of everything that is computed, it keeps its cells filled and makes chains."""

from time import perf_counter

import numpy as np

from strata.engine.drafts.chain import Chains, Run
from strata.engine.drafts.followed import Followed
from strata.engine.drafts.layer import DraftLayer, Ints
from strata.engine.drafts.vocabulary import LiveVocabulary
from strata.engine.plan import ScheduledRows, StartedSequence, StepOutput


class Following:
    """Of a runner with a draft layer."""

    def __init__(self, layer: DraftLayer, sequences: int):
        self.layer, self.followed = layer, Followed(sequences)
        self.chains = Chains(layer, self.followed)
        self._texts: dict[int, StartedSequence] = {}
        self.vocabulary: LiveVocabulary | None = None

    def start(self, started: StartedSequence) -> None:
        """A request got a sequence."""
        self._texts[started.sequence] = started
        if self.vocabulary is not None:
            self.vocabulary.see(started.prompt_token_ids)
        self.followed.start(started.sequence)

    def chunk_begins(self, rows: ScheduledRows) -> None:
        """Inputs of a prompt chunk, whose program fills the draft layer's cells itself."""
        following = self._after(rows)
        self.layer.follow(np.array([*rows.token_ids[1:], following or 0], np.int32))

    def chunk_done(self, rows: ScheduledRows) -> None:
        """A chunk is computed; its last cell lacks the token after it where that is still to be sampled."""
        following = self._after(rows)
        self._read(rows, following)
        self.followed.filled[rows.sequence] = rows.end - (following is None)

    def tail_done(self, rows: ScheduledRows) -> None:
        """Rows of a prompt in the step form are computed."""
        self._read(rows, self._after(rows))
        self.chains.catch_up(np.array([rows.sequence], np.int32))

    def sampled(self, sequence: int, token: int) -> None:
        """The first token after a prompt."""
        self.followed.add(sequence, token)

    def decoded(self, sequences: Ints, positions: Ints, token_ids: Ints, sampled: Ints) -> None:
        """A step of one row a sequence."""
        self.followed.decoded(sequences, positions, token_ids, sampled)
        self.saw(sampled)
        self.chains.catch_up(sequences)

    def draft(self, sequences: Ints, lengths: Ints, output: StepOutput) -> Run | None:
        """Starts chains after a step whose rows `followed` knows; sequences without one are caught up now and then."""
        begin = perf_counter()
        run = self.chains.start(sequences, lengths) if lengths.any() else None
        if run is not None:
            output.chains = run.wait
        output.draft_ms = (perf_counter() - begin) * 1e3
        self.chains.catch_up(sequences)
        return run

    def saw(self, token_ids: Ints) -> None:
        """Tokens that became output."""
        if self.vocabulary is not None:
            self.vocabulary.see(token_ids)

    def _read(self, rows: ScheduledRows, following: int | None) -> None:
        self.followed.read(rows.sequence, rows.position, np.array(rows.token_ids, np.int32), following)

    def _after(self, rows: ScheduledRows) -> int | None:
        """The token after these rows, where it exists."""
        started = self._texts.get(rows.sequence)
        if started is None:
            return None
        prompt, at = started.prompt_token_ids, rows.end
        if at < len(prompt):
            return prompt[at]
        at -= len(prompt)
        return started.output_token_ids[at] if at < len(started.output_token_ids) else None
