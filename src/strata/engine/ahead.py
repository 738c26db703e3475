"""Running ahead: the next step's forward starts before this step's tokens are known to the host.

Tokens go from sampling to it on the device. Where the next plan is what was guessed (the same rows, one position on),
its forward is running already; else it is dropped: what it wrote are cells and rows that nobody has committed, and the
next step writes them again.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.backends import SAMPLED
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
        if self._can:
            runner.backend.feed(runner.samples.buffers.out_ids, runner.step_inputs.tokens)

    @property
    def guessing(self) -> bool:
        """Whether a guess is on its way."""
        return self._guess is not None

    def begin(self, decode: DecodeRows) -> None:
        """Starts the forward of the rows that follow, where that needs no new page and leaves logits to nobody."""
        runner, positions = self._runner, decode.positions + 1
        if not self._can or runner.keeps_logits or not (positions % PAGE_CELLS).all():
            return
        if positions.max() >= runner.limits.max_model_len:
            return
        rows = DecodeRows(decode.sequences, positions, np.full(len(decode), SAMPLED, np.int32))
        runner.write_rows(StepPlan(rows)).submit()
        runner.commit_none(decode.sequences)  # those of this step are state now
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
        guess, rows = self._guess, plan.decode
        self.taken = (
            guess is not None
            and not plan.tails
            and plan.prompt is None
            and rows.sequences is guess.sequences
            and np.array_equal(rows.positions, guess.positions)
        )
        if self.taken:
            self._guess = None
        else:
            self.drop()

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
