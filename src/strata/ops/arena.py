"""Arena planning: gives each scratch buffer an offset so that buffers alive at the same time never overlap."""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class Interval:
    """Op indices [first, last] during which `nbytes` must stay untouched."""

    first: int
    last: int
    nbytes: int


def place(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Offsets of the intervals, and the arena's size in bytes.

    Largest first, each at the lowest gap that fits among the placed ones it overlaps in time
    (greedy by size, Pisarchyk and Lee 2020).
    """
    offsets = [0] * len(intervals)
    placed: list[int] = []  # by offset
    size = 0
    for i in sorted(range(len(intervals)), key=lambda i: (-intervals[i].nbytes, intervals[i].first)):
        offsets[i] = _lowest_gap(intervals, offsets, placed, i)
        insort(placed, i, key=offsets.__getitem__)
        size = max(size, offsets[i] + _aligned(intervals[i].nbytes))
    return offsets, size


def _lowest_gap(intervals: Sequence[Interval], offsets: list[int], placed: list[int], i: int) -> int:
    mine, at = intervals[i], 0
    for j in placed:
        other = intervals[j]
        if other.last < mine.first or mine.last < other.first:
            continue
        if at + mine.nbytes <= offsets[j]:
            break
        at = max(at, offsets[j] + _aligned(other.nbytes))
    return at


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
