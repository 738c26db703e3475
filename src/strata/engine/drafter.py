"""The draft layer beside the runner: its program, and the rows of the trunk that it reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend, Replay
from strata.memory import StatePool
from strata.models import DraftModel
from strata.ops import MAX_STEP_ROWS, Buffer, Builder, Program, StepBuffers


@dataclass(frozen=True)
class DraftBuffers:
    """`hidden`: what the trunk leaves of every row of a step. `input`, `output`: of the draft program's rows."""

    hidden: Buffer
    input: Buffer
    output: Buffer

    @classmethod
    def create(cls, model: DraftModel, steps: StepBuffers) -> "DraftBuffers":
        """Rows as wide as the draft layer reads them."""

        def rows(name: str, count: int) -> Buffer:
            return Buffer(name, (count, model.draft_width), role="state", live=steps.num_rows)

        return cls(
            rows("hidden", steps.tokens.shape[0]),
            rows("draft_input", MAX_STEP_ROWS),
            rows("draft_output", MAX_STEP_ROWS),
        )


class Drafter:
    """Runs the draft layer on rows whose step inputs the runner has written."""

    def __init__(self, model: DraftModel, steps: StepBuffers):
        self._model, self._steps = model, steps
        self.buffers = DraftBuffers.create(model, steps)

    def program(self, state: StatePool, table: Buffer, logits: Buffer) -> Program:
        """The draft layer as a program of up to MAX_STEP_ROWS rows."""
        b = Builder(self._steps, MAX_STEP_ROWS)
        self._model.draft_forward(b, state, table, logits, self.buffers.input, self.buffers.output)
        return b.finish()

    def bind(self, backend: Backend, program: Program) -> None:
        """Lowers the program; comes after the backend has its arena."""
        self._replay: Replay = backend.lower(program)
        names = (self.buffers.hidden, self.buffers.input, self.buffers.output)
        self._hidden, self._input, self._output = (backend.array(b) for b in names)

    def trunk_rows(self, rows: Sequence[int]) -> NDArray[Any]:
        """A copy of what the trunk's last step left of these rows."""
        return np.asarray(self._hidden[list(rows)])

    def run(self, hidden: NDArray[Any]) -> NDArray[Any]:
        """One step on rows `hidden` [n, draft_width]; returns what their next drafts read. Logits: as the trunk's."""
        self._input[: len(hidden)] = hidden
        self._replay.run()
        return np.asarray(self._output[: len(hidden)].copy())
