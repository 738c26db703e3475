"""How many rows of prompts' tails a step takes beside rows that decode."""

from strata.engine.plan import StepOutput
from strata.ops import MAX_STEP_ROWS

# Of a prompt's tail, at least, where a step of many rows is slow: its text's end may miss much.
FIRST_ROWS = 2
# A step that took longer has half of them next; twice as many follow one that took less than half.
GAP_MS = 70.0


class TailRows:
    """Where steps of many rows are slow (`step_rows`: one decodes at most so many), who decodes waits for them."""

    def __init__(self, step_rows: int):
        self._step_rows, self._rows = step_rows, FIRST_ROWS

    def reset(self) -> None:
        """Another text begins to be read."""
        self._rows = FIRST_ROWS

    def most(self, decoding: int) -> int:
        """Rows beside so many that decode."""
        left = MAX_STEP_ROWS - decoding
        if not decoding or self._step_rows >= MAX_STEP_ROWS:
            return left
        return min(left, self._rows, max(self._step_rows - decoding, FIRST_ROWS))

    def update(self, output: StepOutput) -> None:
        """Learns from a step with tails that others waited for."""
        if not len(output.plan.decode):
            return
        if output.decode_ms > GAP_MS:
            self._rows = max(self._rows // 2, FIRST_ROWS)
        elif 2 * output.decode_ms < GAP_MS:
            self._rows = min(2 * self._rows, max(self._step_rows - len(output.plan.decode), FIRST_ROWS))
