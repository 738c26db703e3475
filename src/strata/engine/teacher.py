"""Teacher-forced logits of sequence 0 of an idle runner: for evaluation, and to check what steps compute."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from strata.engine.drafts.layer import Rows
from strata.engine.pieces import Cutter
from strata.engine.plan import ScheduledRows
from strata.engine.runner import Runner
from strata.errors import FaultError
from strata.ops import MAX_STEP_ROWS, RING_ROWS, Form

Pieces = Iterator[NDArray[np.float32]]  # [n, vocab_size] each


class Teacher:
    """Feeds known tokens and yields logits."""

    def __init__(self, runner: Runner):
        self._runner = runner

    def logits(self, token_ids: Sequence[int], cutter: Cutter) -> Pieces:
        """Logits of a fresh sequence, in order of tokens."""
        position = 0
        try:
            while position < len(token_ids):
                piece = cutter.cut(position, len(token_ids) - position)
                tokens = list(token_ids[position : position + piece.count])
                yield from self.read(piece.form, position, tokens, range(len(tokens)))
                position += len(tokens)
        finally:
            self._runner.pages.free(0)

    def read(self, form: Form, position: int, token_ids: list[int], wanted: range) -> Pieces:
        """Computes and commits tokens; logits of its `wanted` rows."""
        runner = self._runner
        lowered = runner.programs.of(form, len(token_ids))
        self._trunk(form, position, token_ids)
        for first in range(0, len(wanted), MAX_STEP_ROWS):
            part = wanted[first : first + MAX_STEP_ROWS]
            runner.want(np.array(part))
            lowered.run_part(lowered.head)
            yield runner.logits(len(part))

    def draft_logits(self, token_ids: Sequence[int], cutter: Cutter) -> Pieces:
        """Logits of the draft layer: row i from position i's rows of the trunk and token i + 1."""
        drafter = self._runner.programs.drafter
        assert drafter is not None, "the model has no draft layer"
        cutter = Cutter(min(cutter.prefill, RING_ROWS))  # so that the ring holds what a piece leaves
        position, last = 0, len(token_ids) - 1
        try:
            while position < last:
                piece = cutter.cut(position, last - position)
                end = position + piece.count
                self._trunk(piece.form, position, list(token_ids[position:end]))
                for begin in range(position, end, drafter.lanes):
                    cells = np.arange(begin, min(begin + drafter.lanes, end), dtype=np.int32)
                    following = np.array(token_ids, np.int32)[cells + 1]
                    yield drafter.all_logits(Rows(np.zeros(len(cells), np.int32), cells, following))
                position = end
        finally:
            self._runner.pages.free(0)

    def _trunk(self, form: Form, position: int, token_ids: list[int]) -> None:
        """Everything but the head, committed."""
        runner = self._runner
        runner.keeper.grow(0, position + len(token_ids))
        runner.write(form, ScheduledRows(-1, 0, position, token_ids, sampled=False))
        try:
            runner.programs.of(form, len(token_ids)).run_trunk()
        except FaultError:
            runner.commit({0: 0})  # what was committed before became state in the void step
            raise
        runner.commit({0: len(token_ids) if form == "step" else 0})
        runner.trace(len(token_ids), form)
