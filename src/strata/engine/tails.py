"""How many rows of prompts' tails a step takes beside rows that decode."""

from strata.engine.plan import StepOutput
from strata.ops import MAX_STEP_ROWS

FIRST_ROWS = (
    2  # of a prompt's tail, where a step of many rows is slow: nobody knows what its text's end misses
)
GAP_MS = (
    70.0  # a step that took longer has half of them next; twice as many follow one that took less than half
)


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
        return min(left, self._rows)

    def update(self, output: StepOutput) -> None:
        """Learns from a step with tails."""
        if output.decode_ms > GAP_MS:
            self._rows = max(self._rows // 2, 1)
        elif 2 * output.decode_ms < GAP_MS:
            self._rows = min(2 * self._rows, max(self._step_rows - len(output.plan.decode), FIRST_ROWS))
