"""Runs the draft layer: fills cells behind the trunk, and makes chains of drafts after a step.

The host goes on while chains are made: what it does between steps costs nothing then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.engine.drafts.followed import Followed
from strata.engine.drafts.layer import DraftLayer, Ints, Rows
from strata.engine.plan import Chain
from strata.errors import FaultError
from strata.ops import MAX_STEP_ROWS

LAG = 32  # cells that may be missing while nothing is drafted
JOINED = 8  # rows of a first pass: what more are missing get cells alone before it, which cost no experts


@dataclass(frozen=True)
class Run:
    """Chains that are on their way: drafts of `lengths` for `sequences`, the longest first, which is the order of the
    draft layer's rows. `wait` gives them, before others are started; none of those at fault."""

    sequences: Ints
    lengths: Ints
    wait: Callable[[], dict[int, Chain]]


class Chains:
    """A fault in the draft layer costs the drafts of a step, never the step."""

    def __init__(self, layer: DraftLayer, followed: Followed):
        self._layer, self.followed = layer, followed
        self.passes = self.faults = 0

    def catch_up(self, sequences: Ints, lag: int = LAG) -> None:
        """Fills cells of those sequences that lack `lag` or more, in as few passes as they fit."""
        behind = self.followed.behind(sequences)
        if not (behind >= lag).any():
            return
        waiting: list[Rows] = []
        for sequence in sequences[behind >= lag].tolist():
            waiting.append(self.followed.rows(sequence, 2 * MAX_STEP_ROWS))
        self._fill(waiting)

    def _fill(self, waiting: Sequence[Rows]) -> None:
        rows = _joined(waiting)
        for begin in range(0, len(rows), MAX_STEP_ROWS):
            part = _part(rows, begin, begin + MAX_STEP_ROWS)
            try:
                self._layer.fill(part)
            except FaultError:
                self.faults += 1
            self.passes += 1
            self.followed.fill(part)

    def start(self, sequences: Ints, lengths: Ints) -> Run | None:
        """Starts chains of up to `lengths` drafts after the newest token of each sequence; None where none is."""
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] > 0]
        sequences, lengths = sequences[order], lengths[order]
        behind = self.followed.behind(sequences)
        if not len(sequences) or (behind < 1).any():
            return None
        rows = [self.followed.rows(s, 2 * MAX_STEP_ROWS) for s in sequences.tolist()]
        if sum(len(r) for r in rows) > max(JOINED, 2 * len(rows)):
            self._fill([_part(r, 0, len(r) - 1) for r in rows])
            rows = [_part(r, len(r) - 1, len(r)) for r in rows]
        joined, last = _joined(rows), np.cumsum([len(r) for r in rows]).astype(np.int32) - 1
        try:
            self._submit(joined, last, lengths)
        except FaultError:
            self.faults += 1
            return None
        finally:
            self.followed.fill(joined)
        return Run(sequences, lengths, lambda: self._wait(sequences, lengths))

    def _wait(self, sequences: Ints, lengths: Ints) -> dict[int, Chain]:
        try:
            ids, logprobs = self._layer.wait(int(lengths[0]), len(sequences))
        except FaultError:
            self.faults += 1
            return {}
        return self._chains(sequences, lengths, ids, np.exp(logprobs))

    def _submit(self, rows: Rows, last: Ints, lengths: Ints) -> None:
        """A pass after the other, each for the sequences whose chains go on; the longest come first."""
        sequences, positions, most = rows.sequences[last], rows.positions[last], int(lengths[0])
        self._layer.first(rows, last)
        for depth in range(1, most):
            live = int((lengths > depth).sum())
            self._layer.next(sequences[:live], positions[:live] + np.int32(depth), depth)
        self.passes += most

    def _chains(
        self, sequences: Ints, lengths: Ints, ids: Ints, probabilities: NDArray[np.float32]
    ) -> dict[int, Chain]:
        found = {}
        for i, (sequence, length) in enumerate(zip(sequences.tolist(), lengths.tolist(), strict=True)):
            tokens = ids[:length, i].tolist()
            tokens = tokens[: next((j for j, t in enumerate(tokens) if t < 0), length)]
            if tokens:
                found[sequence] = Chain(tokens, probabilities[: len(tokens), i].tolist())
        return found


def _joined(parts: Sequence[Rows]) -> Rows:
    return Rows(
        np.concatenate([p.sequences for p in parts]),
        np.concatenate([p.positions for p in parts]),
        np.concatenate([p.token_ids for p in parts]),
    )


def _part(rows: Rows, begin: int, end: int) -> Rows:
    return Rows(rows.sequences[begin:end], rows.positions[begin:end], rows.token_ids[begin:end])
