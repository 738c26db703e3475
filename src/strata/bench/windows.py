"""Decoding on a device that does not hold all experts: windows of a planted cycle whose topics change, and one whose
topic stays (synth/planted.py). Hits, who brought the misses, and the floor that the run's own hits give."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strata.bench.probe import Probe
from strata.engine.load import LoadedModel
from strata.errors import UsageError
from strata.synth.planted import topic_borders

WINDOW = 512
WINDOWS = 6
CHANGES = 3  # of the topic in a window

Counts = dict[str, int]


@dataclass(frozen=True)
class Piece:
    """Tokens decoded one after another from nothing: the cycle from `offset` on."""

    offset: int
    length: int


@dataclass(frozen=True)
class WindowResult:
    """One window: its rate, what the tiers counted, and how many tokens were those of the cycle."""

    tps: float
    counts: Counts
    followed: int
    tokens: int

    @property
    def hit_rate(self) -> float:
        """Share of the distinct experts that VRAM had."""
        return self.counts["hits"] / max(self.counts["distinct"], 1)


def load_cycle(path: Path) -> NDArray[np.int64]:
    """The planted cycle beside a model file; UsageError where there is none."""
    try:
        cycle: NDArray[np.int64] = np.load(f"{path}.cycle.npy")
    except OSError:
        raise UsageError(
            f"{path}.cycle.npy is not there; windows are of planted models (strata synth)"
        ) from None
    return cycle


def changing_windows(borders: Sequence[int], cycle: int) -> list[Piece]:
    """WINDOWS windows with CHANGES changes each, spread over the cycle."""
    found = []
    for i in range(WINDOWS):
        after = int(np.searchsorted(borders, i * cycle // WINDOWS))
        while True:
            first, last = borders[after], borders[after + CHANGES - 1]
            begin = (first + last) // 2 - WINDOW // 2
            inside = np.searchsorted(borders, [begin, begin + WINDOW])
            if begin >= 0 and inside[1] - inside[0] == CHANGES:
                break
            after += 1
        found.append(Piece(begin, WINDOW))
    return found


def staying_window(borders: Sequence[int], topics: NDArray[np.int64]) -> list[Piece]:
    """Runs of one topic that make WINDOW tokens together; a run's first token stands for its change."""
    pieces, left, topic = [], WINDOW, None
    for begin, end in pairwise(borders):
        if topic is None:
            topic = topics[begin]
        if topics[begin] == topic and left:
            length = min(left, end - begin - 1)
            pieces.append(Piece(begin + 1, length))
            left -= length
    return pieces


class Windows:
    """Runs windows on a loaded model that does nothing else."""

    def __init__(self, loaded: LoadedModel, cycle: NDArray[np.int64]):
        self._loaded, self._cycle, self._probe = loaded, cycle, Probe(loaded)
        topics, borders = topic_borders(cycle)
        self.changing = changing_windows(borders, len(cycle))
        self.staying = staying_window(borders, topics)

    def rounds(self, count: int, tell: Callable[[str], None]) -> Iterator[list[WindowResult]]:
        """So many rounds over the changing windows; the result of each."""
        for n in range(count):
            results = [self.run([piece]) for piece in self.changing]
            tell(f"round {n + 1}: " + ", ".join(f"{r.tps:.1f}" for r in results))
            yield results

    def run(self, pieces: Sequence[Piece]) -> WindowResult:
        """Pieces one after another, as one window."""
        before, followed, tokens = self.counts(), 0, 0
        begin = time.perf_counter()
        for piece in pieces:
            wanted = np.take(self._cycle, range(piece.offset, piece.offset + piece.length + 1), mode="wrap")
            got = self._probe.walk(int(wanted[0]), piece.length)
            followed += int((got == wanted[1:]).sum())
            tokens += piece.length
        seconds, after = time.perf_counter() - begin, self.counts()
        return WindowResult(tokens / seconds, {k: after[k] - before[k] for k in after}, followed, tokens)

    def counts(self) -> Counts:
        """What the tiers have counted so far."""
        return self._loaded.tier_counts()
