"""The draft layer beside the runner: its program, and the rows of the trunk that it reads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend
from strata.memory import StatePool
from strata.models import DraftModel
from strata.ops import MAX_STEP_ROWS, Buffer, Builder, Form, Program, StepBuffers


class Drafter:
    """Runs the draft layer on rows whose step inputs the runner has written."""

    def __init__(self, model: DraftModel, steps: StepBuffers, chunks: StepBuffers):
        self._model, self._steps = model, steps

        def rows(name: str, inputs: StepBuffers) -> Buffer:
            shape = (inputs.tokens.shape[0], model.draft_width)
            return Buffer(name, shape, role="state", live=inputs.num_rows)

        self._hidden: dict[Form, Buffer] = {
            "step": rows("hidden", steps),
            "chunk": rows("chunk_hidden", chunks),
        }
        self._input, self._output = rows("draft_input", steps), rows("draft_output", steps)

    def hidden(self, form: Form) -> Buffer:
        """What the trunk leaves of every row of a step or of a chunk, [rows, draft_width]."""
        return self._hidden[form]

    def program(self, state: StatePool, table: Buffer, logits: Buffer) -> Program:
        """The draft layer as a program of up to MAX_STEP_ROWS rows."""
        b = Builder(self._steps, MAX_STEP_ROWS)
        self._model.draft_forward(b, state, table, logits, self._input, self._output)
        return b.finish()

    def bind(self, backend: Backend, program: Program) -> None:
        """Lowers the program; comes after the backend has its arena."""
        self._backend, self._replay = backend, backend.lower(program)

    def trunk_rows(self, form: Form, rows: Sequence[int]) -> NDArray[Any]:
        """A copy of what the trunk's last step or chunk left of these rows."""
        return np.asarray(self._backend.array(self._hidden[form])[list(rows)])

    def run(self, hidden: NDArray[Any]) -> NDArray[Any]:
        """One step on rows `hidden` [n, draft_width]; returns what their next drafts read. Logits: as the trunk's."""
        self._backend.array(self._input)[: len(hidden)] = hidden
        self._replay.run()
        return np.asarray(self._backend.array(self._output)[: len(hidden)].copy())
