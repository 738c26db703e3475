"""How far the draft layer has come with each sequence: which cells it has, and the tokens that the next ones need."""

import numpy as np

from strata.engine.drafts.layer import Ints, Rows
from strata.ops import RING_ROWS

_TOKENS = (
    2 * RING_ROWS
)  # kept by position; more than a ring of rows, since a cell needs the token after its own
UNKNOWN = -1


class Followed:
    """Arrays by sequence: positions below `computed` are computed, cells below `filled` are there.

    A cell needs the trunk's row at its position and the token after it, so the cell before the newest token is the last
    that can be filled.
    """

    def __init__(self, sequences: int):
        self.computed = np.zeros(sequences, np.int64)
        self.filled = np.full(sequences, UNKNOWN, np.int64)
        self._tokens = np.zeros((sequences, _TOKENS), np.int32)
        self._known = np.zeros(sequences, np.int64)  # tokens at positions below it

    def start(self, sequence: int) -> None:
        """Another request has the sequence."""
        self.filled[sequence] = UNKNOWN

    def read(self, sequence: int, begin: int, tokens: Ints, following: int | None) -> None:
        """Prompt tokens computed from `begin` on; `following`: the token after them, where there is one."""
        end = begin + len(tokens)
        self._begin(sequence, begin)
        last = tokens[-_TOKENS:]
        self._tokens[sequence, np.arange(end - len(last), end) % _TOKENS] = last
        self.computed[sequence] = self._known[sequence] = end
        if following is not None:
            self.add(sequence, following)

    def add(self, sequence: int, token: int) -> None:
        """A token that exists and is not computed."""
        position = int(self.computed[sequence])
        self._tokens[sequence, position % _TOKENS] = token
        self._known[sequence] = position + 1

    def decoded(self, sequences: Ints, positions: Ints, token_ids: Ints, sampled: Ints) -> None:
        """Rows of the step form that became state, one of each sequence, and the tokens sampled after them."""
        unknown = self.filled[sequences] == UNKNOWN
        if unknown.any():
            fresh = sequences[unknown]
            self.filled[fresh] = positions[unknown]
        self._tokens[sequences, positions % _TOKENS] = token_ids
        self._tokens[sequences, (positions + 1) % _TOKENS] = sampled
        self.computed[sequences] = positions + 1
        self._known[sequences] = positions + 2

    def accepted(self, sequence: int, position: int, tokens: Ints) -> None:
        """Of a sequence's drafted rows from `position` on, those that became state, and the token sampled after them:
        i32 [rows + 1]."""
        if self.filled[sequence] == UNKNOWN:
            self.filled[sequence] = position
        at = np.arange(position, position + len(tokens))
        self._tokens[sequence, at % _TOKENS] = tokens
        self.computed[sequence], self._known[sequence] = at[-1], at[-1] + 1

    def _begin(self, sequence: int, begin: int) -> None:
        if self.filled[sequence] == UNKNOWN:
            self.filled[sequence] = begin

    def behind(self, sequences: Ints) -> Ints:
        """Cells that could be filled of each sequence."""
        ready = np.minimum(self.computed[sequences], self._known[sequences] - 1)
        return np.asarray(np.maximum(ready - self.filled[sequences], 0), np.int32)

    def rows(self, sequence: int, most: int) -> Rows:
        """The oldest cells to fill of a sequence, as far as the ring still has its rows."""
        end = int(min(self.computed[sequence], self._known[sequence] - 1))
        begin = max(int(self.filled[sequence]), end - RING_ROWS + 1)
        positions = np.arange(begin, min(end, begin + most), dtype=np.int32)
        tokens = self._tokens[sequence, (positions + 1) % _TOKENS]
        return Rows(np.full(len(positions), sequence, np.int32), positions, tokens)

    def fill(self, rows: Rows) -> None:
        """These cells are there, or lost."""
        self.filled[rows.sequences] = rows.positions + 1
