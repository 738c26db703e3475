"""Running ahead: the next step's forward starts before this step's tokens are known to the host.

Tokens go from sampling, or from the draft layer's chains, to it on the device. Where the next plan is what was guessed
(the same sequences, one position on; or the newest token of each and its drafts), its forward runs already; else it
is dropped: what it wrote are cells and rows that nobody has committed, and the next step writes them again.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.backends import DRAFTED, SAMPLED
from strata.engine.drafts.chain import Run
from strata.engine.plan import DecodeRows, Ints, StepOutput, StepPlan
from strata.errors import FaultError
from strata.ops import PAGE_CELLS

if TYPE_CHECKING:
    from strata.engine.runner import Runner


class RunAhead:
    """Of a runner. Lifecycle of a guess: begin, meet (taken or dropped)."""

    def __init__(self, runner: "Runner"):
        self._runner = runner
        self._can = runner.backend.runs_ahead
        self._guess: DecodeRows | None = None
        self.taken = False  # whether the current plan's forward is running already
        layer = runner.programs.drafter
        drafts = None if layer is None else layer.results.drafts
        self._drafts = None if drafts is None else runner.backend.array(drafts)
        if self._can:
            runner.backend.feed(runner.samples.buffers.out_ids, runner.step_inputs.tokens, drafts)

    @property
    def guessing(self) -> bool:
        """Whether a guess is on its way."""
        return self._guess is not None

    @property
    def verifying(self) -> bool:
        """Whether it has the drafts of the chains that were started last."""
        return self._guess is not None and self._guess.counts is not None

    def begin(self, decode: DecodeRows) -> None:
        """Starts the forward of the rows that follow, where that needs no new page and leaves logits to nobody."""
        runner, positions = self._runner, decode.positions + 1
        if not self._can or runner.keeps_logits or not (positions % PAGE_CELLS).all():
            return
        if positions.max() >= runner.limits.max_model_len:
            return
        rows = DecodeRows(decode.sequences, positions, np.full(len(decode), SAMPLED, np.int32))
        self._start(rows, decode.sequences)

    def verify(self, sequences: Ints, positions: Ints, token_ids: Ints, run: Run) -> None:
        """Starts the forward of the newest token of each sequence, at these positions, and of all its drafts that `run`
        makes, where pages are there and logits are left to nobody."""
        runner = self._runner
        if not self._can or runner.keeps_logits:
            return
        lengths = np.zeros(len(sequences), np.int32)
        lanes = np.zeros(len(sequences), np.int32)
        place = {s: i for i, s in enumerate(sequences.tolist())}
        for lane, (sequence, length) in enumerate(
            zip(run.sequences.tolist(), run.lengths.tolist(), strict=True)
        ):
            lengths[place[sequence]], lanes[place[sequence]] = length, lane
        cells = dict(zip(sequences.tolist(), (positions + lengths + 1).tolist(), strict=True))
        if max(cells.values()) > runner.limits.max_model_len:
            return
        if any(runner.pages.missing(s, n) for s, n in cells.items()):
            return
        counts = lengths + 1
        firsts = np.cumsum(counts) - counts
        inside = np.arange(int(counts.sum())) - np.repeat(firsts, counts)
        assert self._drafts is not None
        _, planes, width = self._drafts.shape
        tokens = DRAFTED + (inside - 1) * (planes * width) + np.repeat(lanes, counts)
        tokens[firsts] = token_ids
        own = (np.repeat(positions, counts) + inside).astype(np.int32)
        self._start(DecodeRows(np.repeat(sequences, counts), own, tokens.astype(np.int32), counts), sequences)

    def _start(self, rows: DecodeRows, sequences: Ints) -> None:
        self._runner.write_rows(StepPlan(rows)).submit()
        self._runner.commit_none(sequences)  # those of this step are state now
        self._guess = rows

    def wait(self, results: Any, step: int) -> None:
        """Until the step's tokens are published; FaultError for a fault up to them."""
        sampler = self._runner.programs.sampler
        sampler.wait()
        if not self._can:
            sampler.check()
            return
        if self._guess is None:
            sampler.check()
        elif self._runner.programs.ring.faulty(results, step):
            self._finish()

    def meet(self, plan: StepPlan) -> None:
        """Takes the guess where it is the plan's rows, else drops it."""
        guess = self._guess
        self.taken = (
            guess is not None
            and not (plan.started or plan.tails or plan.prompt)
            and self._is(guess, plan.decode)
        )
        if self.taken:
            self._guess = None
        else:
            self.drop()

    def _is(self, guess: DecodeRows, rows: DecodeRows) -> bool:
        """Whether the rows are the guess."""
        if guess.counts is None:
            same = rows.counts is None and rows.sequences is guess.sequences
            return same and np.array_equal(rows.positions, guess.positions)
        if rows.counts is None or not np.array_equal(rows.counts, guess.counts):
            return False
        tokens = guess.token_ids.copy()
        drafted = tokens < 0
        assert self._drafts is not None
        tokens[drafted] = np.maximum(np.asarray(self._drafts).reshape(-1)[tokens[drafted] - DRAFTED], 0)
        pairs = (rows.sequences, guess.sequences), (rows.positions, guess.positions), (rows.token_ids, tokens)
        return all(np.array_equal(a, b) for a, b in pairs)

    def drop(self) -> None:
        """The guess is worth nothing, its faults neither."""
        if self._guess is None:
            return
        with suppress(FaultError):
            self._finish()
        self._guess, self.taken = None, False

    def lost(self, fault: FaultError, decode: DecodeRows, output: StepOutput) -> bool:
        """After a fault: whether the step cannot be computed again, since a guess has made its rows state; then rows
        without a token are at fault, or all."""
        guessed = self._guess is not None
        self._guess = None
        if not guessed or not self._runner.recurrent:
            return False
        tokens: Ints = self._runner.published()
        at_fault = tokens < 0 if (tokens < 0).any() else np.ones(len(tokens), bool)
        output.faults.update(dict.fromkeys(decode.sequences[at_fault].tolist(), fault))
        output.token_ids = np.maximum(tokens, 0)
        return True

    def _finish(self) -> None:
        guess = self._guess
        assert guess is not None
        replay = self._runner.programs.step_of[len(guess)].replay
        replay.wait()
        replay.check()
