"""Rows of a step by sequence: what recurrent ops iterate over."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata.ops.buffers import Buffer
from strata.ops.op import Arrays
from strata.ops.step import MAX_TAPS


@dataclass(frozen=True)
class Group:
    """Consecutive rows of one sequence, at consecutive positions."""

    sequence: int
    rows: slice
    position: int  # of the first row

    @property
    def count(self) -> int:
        """Rows of the group."""
        return int(self.rows.stop - self.rows.start)


def groups(at: Arrays, positions: Buffer, sequences: Buffer) -> Iterator[Group]:
    """The live rows' groups, in order."""
    owner, position = at.live(sequences), at.live(positions)
    borders = np.flatnonzero(np.diff(owner)) + 1
    for begin, end in zip([0, *borders], [*borders, len(owner)], strict=True):
        if begin < end:
            yield Group(int(owner[begin]), slice(int(begin), int(end)), int(position[begin]))


def taps(at: Arrays, tap_positions: Buffer, tap_slots: Buffer, group: Group) -> Iterator[tuple[int, int]]:
    """(position, slot) of the taps inside a group's span, its end included."""
    for i in range(MAX_TAPS):
        position = int(at[tap_positions][i])
        if group.position < position <= group.position + group.count:
            yield position, int(at[tap_slots][i])


def window(ring: Any, group: Group, rows: Any, back: int) -> Any:
    """[back + rows, ...]: what lies `back` positions before the group, zeros before position 0, then its rows.

    `ring` [RING_ROWS, ...] holds the sequence's earlier rows by position.
    """
    before = np.arange(group.position - back, group.position)
    old = ring[before % len(ring)].copy()
    old[before < 0] = 0
    return np.concatenate([old, rows])


def keep(ring: Any, group: Group, rows: Any) -> None:
    """Puts the last of the group's rows into the ring, by position."""
    count = min(group.count, len(ring))
    end = group.position + group.count
    ring[np.arange(end - count, end) % len(ring)] = rows[group.count - count :]
