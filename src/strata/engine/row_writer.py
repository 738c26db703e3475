"""What a step or a chunk reads of its rows: tokens, places, which of them have logits. Written without a copy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.engine.plan import Ints, ScheduledRows, StepPlan
from strata.engine.programs import Inputs
from strata.ops import Buffer, Form


class RowWriter:
    """Of a runner's input buffers; `at`: their arrays."""

    def __init__(self, buffers: Inputs, at: Mapping[Buffer, NDArray[Any]]):
        self._buffers, self._at = buffers, at
        self._written: Ints | None = None  # decoding sequences that the step inputs name

    def plan(self, plan: StepPlan) -> int:
        """The plan's decoding rows and prompt tails in the step form; their number."""
        s, at, decode = self._buffers.step, self._at, plan.decode
        count = len(decode.sequences)
        at[s.tokens][:count] = decode.token_ids
        at[s.positions][:count] = decode.positions
        if plan.tails or decode.sequences is not self._written:
            count = self._sequences(plan)
        at[s.rope_positions][:count] = at[s.positions][:count, None]
        return count

    def _sequences(self, plan: StepPlan) -> int:
        """What stays as it is while the same sequences decode, and prompt tails; the rows."""
        s, at, decode = self._buffers.step, self._at, plan.decode
        count = wanted = len(decode)
        at[s.sequences][:count] = decode.sequences
        at[s.logit_rows][:count] = np.arange(count)
        for tail in plan.tails:
            count = self._place("step", tail, count)
            if tail.sampled:
                at[s.logit_rows][wanted] = count - 1
                wanted += 1
        at[s.num_rows][0], at[s.num_logit_rows][0] = count, wanted
        self._written = None if plan.tails else decode.sequences
        return count

    def one(self, form: Form, rows: ScheduledRows) -> None:
        """One sequence's rows, whose pages it holds."""
        s, at = self._buffers.of(form), self._at
        self._written, count = None, self._place(form, rows, 0)
        at[s.rope_positions][:count] = at[s.positions][:count, None]
        at[s.num_rows][0] = count

    def _place(self, form: Form, rows: ScheduledRows, begin: int) -> int:
        s, at = self._buffers.of(form), self._at
        end = begin + len(rows.token_ids)
        at[s.tokens][begin:end] = rows.token_ids
        at[s.positions][begin:end] = np.arange(rows.position, rows.end)
        at[s.sequences][begin:end] = rows.sequence
        return end

    def taps(self, taps: tuple[tuple[int, int], ...]) -> None:
        """Positions of a chunk at which its state is written out, and into which slots."""
        s, at = self._buffers.chunk, self._at
        at[s.tap_positions][:] = 0
        for i, (position, slot) in enumerate(taps):
            at[s.tap_positions][i], at[s.tap_slots][i] = position, slot

    def want(self, rows: NDArray[Any]) -> None:
        """Rows whose logits the head makes."""
        s, self._written = self._buffers.step, None
        self._at[s.num_logit_rows][0] = len(rows)
        self._at[s.logit_rows][: len(rows)] = rows

    @property
    def num_wanted(self) -> int:
        """Rows whose logits the head makes; their indices stay where the number alone is set."""
        return int(self._at[self._buffers.step.num_logit_rows][0])

    @num_wanted.setter
    def num_wanted(self, count: int) -> None:
        self._at[self._buffers.step.num_logit_rows][0] = count
